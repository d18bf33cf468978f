"""Sharded checkpoints, written by all ranks together into one folder.

Guarantees: rank 0 writes `meta.json`, without which a folder is no checkpoint, once every shard is on disk and hashed;
a failure of one rank fails on all and leaves nothing behind. Runs in the writer thread, with a process group of its
own.
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
from mlflow_stability.recovery.checkpoints.checkpoint_store import CheckpointStore
from mlflow_stability.recovery.checkpoints.sharded_state import Layouts, shards_of, without_shards, write_shards
from mlflow_stability.recovery.checkpoints.state_file import write_state
from mlflow_stability.recovery.checkpoints.stored_checkpoints import METADATA, STATE, CheckpointMeta, sha256_of
from mlflow_stability.recovery.state.state_copy import StateCopy

WRITE_MINUTES = 30.0
"""How long ranks wait for the slowest writer."""


class CheckpointRanks:
    """The ranks that write checkpoints together, and their process group on the host."""

    def __init__(self, alone: bool = False) -> None:
        distributed = torch.distributed
        self.group: Any = None
        self.rank, self.size = 0, 1
        if not alone:
            self.group = gloo_group(timedelta(minutes=WRITE_MINUTES))
            self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def gather(self, own: Any) -> list[Any]:
        """Collective: return the values of all ranks."""
        answers: list[Any] = [own] * self.size
        if self.group is not None:
            torch.distributed.all_gather_object(answers, own, group=self.group)
        return answers

    def leave(self) -> None:
        """Destroy the process group before the interpreter ends, unless the script has."""
        group, self.group = self.group, None
        if group is not None and torch.distributed.is_initialized():
            with contextlib.suppress(RuntimeError, ValueError):
                torch.distributed.destroy_process_group(group)


class RankStore:
    """A checkpoint store that all ranks write to; only rank 0 holds the directory."""

    def __init__(
        self, ranks: CheckpointRanks, layouts: Callable[[], Layouts], store: CheckpointStore | None = None
    ) -> None:
        self._ranks, self._layouts, self._store = ranks, layouts, store
        self.directory = None if store is None else store.directory

    def commit(self, copy: StateCopy, loss: float, value: float | None, finite: bool) -> CheckpointMeta | None:
        """Collective: write a state; the meta data on rank 0, None elsewhere and where it was not written.

        `finite`: whether this rank's shards are finite. Rank 0 raises OSError where the state was not written.
        """
        copy.wait()
        draft: Path | None = None
        try:
            draft, trouble = self._begin_draft(copy.step, finite)
            answers = self._ranks.gather((copy.step, str(draft or ""), trouble, finite, copy.rng))
            if not all(answer[3] for answer in answers):
                if finite and self._ranks.is_first:
                    raise OSError(f"its shards on {_ranks_where([not answer[3] for answer in answers])} are not finite")
                return None
            self._refuse_unless_same(answers)
            place = Path(answers[0][1])
            unseen = [not sees_it for sees_it in self._ranks.gather(place.is_dir())]
            if any(unseen):
                if self._ranks.is_first:
                    raise OSError(f"{_ranks_where(unseen)} cannot see {place.parent}: use a shared file system")
                return None
            layouts = self._layouts()
            write_shards(shards_of(copy, layouts, self._ranks.is_first), place, self._ranks.group)
            listed = self._ranks.gather(self._own_files(place))
            if self._store is None or draft is None:
                return None
            unread = [reason for reason in listed if isinstance(reason, str)]
            if unread:
                raise OSError(unread[0])
            files = [file for files_of_rank in listed for file in files_of_rank]
            missing = [name for name, size, _ in files if (draft / name).stat().st_size != size]
            if missing:
                raise OSError(f"{len(missing)} shards are not whole, such as {missing[0]}")
            shared = without_shards(copy, layouts)
            written = write_state(shared, draft / STATE, rng_of_ranks=[answer[4] for answer in answers])
            return self._store.finish(draft, copy, written, loss, value, tuple(files))
        finally:
            if draft is not None:
                shutil.rmtree(draft, ignore_errors=True)

    def promote(self, step: int) -> None:
        if self._store is not None:
            self._store.promote(step)

    def set_value(self, step: int, value: float) -> None:
        if self._store is not None:
            self._store.set_value(step, value)

    def reject(self, step: int) -> None:
        if self._store is not None:
            self._store.reject(step)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _begin_draft(self, step: int, finite: bool) -> tuple[Path | None, str]:
        """Return the folder to write to, on rank 0, or the reason against writing."""
        if self._store is None or not finite:
            return None, ""
        try:
            return self._store.begin(step), ""
        except OSError as error:
            return None, str(error)

    def _refuse_unless_same(self, answers: list[Any]) -> None:
        trouble, steps = answers[0][2], {answer[0] for answer in answers}
        if trouble:
            raise OSError(trouble)
        if len(steps) > 1:
            raise OSError(f"processes are at different steps: {', '.join(map(str, sorted(steps)))}")

    def _own_files(self, folder: Path) -> list[tuple[str, int, str]] | str:
        """Return names, sizes and hashes of the files of this rank, or why they cannot be read back."""
        names = [path.name for path in folder.glob(f"__{self._ranks.rank}_*")]
        names += [METADATA] if self._ranks.is_first else []
        try:
            return [(name, (folder / name).stat().st_size, sha256_of(folder / name)) for name in sorted(names)]
        except OSError as error:
            return f"rank {self._ranks.rank}: {error}"


def _ranks_where(those: list[bool]) -> str:
    ranks = [str(rank) for rank, is_it in enumerate(those) if is_it]
    return f"rank {', '.join(ranks)}" if len(ranks) == 1 else f"ranks {', '.join(ranks)}"
