"""Checkpoints that all processes of a training write together, each its own shards.

In: on each process the copy of its shards, of the same step. Out: one folder, as `CheckpointStore` keeps them.
Guarantees: `meta.json`, without which a folder is no checkpoint, is written last, by the first process, when every
shard is on the disk and hashed; what fails on one process fails on all, and leaves nothing behind. Nothing here runs in
the thread that trains, and no process group of the script is used.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from mlflow_stability.probes.ranks import gloo_group
from mlflow_stability.recovery.checkpoints.checkpoint_meta import METADATA, STATE, CheckpointMeta
from mlflow_stability.recovery.checkpoints.checkpoint_reader import sha256_of
from mlflow_stability.recovery.checkpoints.checkpoint_store import CheckpointStore
from mlflow_stability.recovery.checkpoints.sharded_state import Layouts, shards_of, without_shards, write_shards
from mlflow_stability.recovery.checkpoints.state_file import write_state
from mlflow_stability.recovery.state.state_copy import StateCopy

WRITE_MINUTES = 30.0
"""For how long the processes wait for the one that writes longest."""


class CheckpointRanks:
    """The processes that write checkpoints together: a process group on the host that nothing else uses."""

    def __init__(self, alone: bool = False) -> None:
        distributed = torch.distributed
        self.group: Any = None
        self.rank, self.size = 0, 1
        if not alone:
            self.group = gloo_group(timedelta(minutes=WRITE_MINUTES))
            self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    @property
    def is_first(self) -> bool:
        """Whether this process keeps the directory."""
        return self.rank == 0

    def gathered(self, mine: Any) -> list[Any]:
        """What every process says; each must come here."""
        said: list[Any] = [mine] * self.size
        if self.group is not None:
            torch.distributed.all_gather_object(said, mine, group=self.group)
        return said

    def leave(self) -> None:
        """Nothing is written any more: take the group down before the interpreter does, if the script has not yet."""
        group, self.group = self.group, None
        if group is not None and torch.distributed.is_initialized():
            with contextlib.suppress(RuntimeError, ValueError):
                torch.distributed.destroy_process_group(group)


class RankStore:
    """The checkpoints of one training, as one of its processes sees them; only the first one has a store."""

    def __init__(
        self, ranks: CheckpointRanks, layouts: Callable[[], Layouts], store: CheckpointStore | None = None
    ) -> None:
        self._ranks, self._layouts, self._store = ranks, layouts, store
        self.directory = None if store is None else store.directory

    def commit(self, copy: StateCopy, loss: float, value: float | None, finite: bool) -> CheckpointMeta | None:
        """Write a state together; None where it is not to be written, or another process is the one that knows.

        `finite`: whether all is finite that is here. Raises OSError on the first process where it was not written.
        """
        copy.wait()
        draft: Path | None = None
        try:
            draft, trouble = self._begun(copy.step, finite)
            said = self._ranks.gathered((copy.step, str(draft or ""), trouble, finite, copy.rng))
            if not all(each[3] for each in said):
                if finite and self._ranks.is_first:
                    raise OSError(f"its shards on {_ranks_where([not each[3] for each in said])} are not finite")
                return None
            self._refuse_unless_same(said)
            place = Path(said[0][1])
            unseen = [not each for each in self._ranks.gathered(place.is_dir())]
            if any(unseen):
                if self._ranks.is_first:
                    raise OSError(f"{_ranks_where(unseen)} cannot see {place.parent}: use a shared file system")
                return None
            layouts = self._layouts()
            write_shards(shards_of(copy, layouts, self._ranks.is_first), place, self._ranks.group)
            listed = self._ranks.gathered(self._own_files(place))
            if self._store is None or draft is None:
                return None
            unread = [each for each in listed if isinstance(each, str)]
            if unread:
                raise OSError(unread[0])
            files = [each for found in listed for each in found]
            missing = [name for name, size, _ in files if (draft / name).stat().st_size != size]
            if missing:
                raise OSError(f"{len(missing)} shards are not whole, such as {missing[0]}")
            shared = without_shards(copy, layouts)
            written = write_state(shared, draft / STATE, rng_of_ranks=[each[4] for each in said])
            return self._store.finish(draft, copy, written, loss, value, tuple(files))
        finally:
            if draft is not None:
                shutil.rmtree(draft, ignore_errors=True)

    def promote(self, step: int) -> None:
        """This checkpoint has proved itself."""
        if self._store is not None:
            self._store.promote(step)

    def set_value(self, step: int, value: float) -> None:
        """The metric of this checkpoint became known after its state was written."""
        if self._store is not None:
            self._store.set_value(step, value)

    def reject(self, step: int) -> None:
        """This checkpoint led to trouble."""
        if self._store is not None:
            self._store.reject(step)

    def close(self) -> None:
        """Leave the directory to the run's next process."""
        if self._store is not None:
            self._store.close()

    def _begun(self, step: int, finite: bool) -> tuple[Path | None, str]:
        """The folder to write to, on the first process, or why there is none."""
        if self._store is None or not finite:
            return None, ""
        try:
            return self._store.begin(step), ""
        except OSError as error:
            return None, str(error)

    def _refuse_unless_same(self, said: list[Any]) -> None:
        trouble, steps = said[0][2], {each[0] for each in said}
        if trouble:
            raise OSError(trouble)
        if len(steps) > 1:
            raise OSError(f"processes are at different steps: {', '.join(map(str, sorted(steps)))}")

    def _own_files(self, folder: Path) -> list[tuple[str, int, str]] | str:
        """What this process has written, with sizes and hashes, or why it cannot be read back."""
        names = [each.name for each in folder.glob(f"__{self._ranks.rank}_*")]
        names += [METADATA] if self._ranks.is_first else []
        try:
            return [(name, (folder / name).stat().st_size, sha256_of(folder / name)) for name in sorted(names)]
        except OSError as error:
            return f"rank {self._ranks.rank}: {error}"


def _ranks_where(those: list[bool]) -> str:
    found = [str(rank) for rank, each in enumerate(those) if each]
    return f"rank {', '.join(found)}" if len(found) == 1 else f"ranks {', '.join(found)}"
