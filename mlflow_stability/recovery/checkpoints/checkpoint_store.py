"""Checkpoint folders of one run, such as `rollback_ckpt-000500-3.8234/` with `state.pt` and `meta.json`.

Guarantees: a folder gets its name only when it is complete on disk; a failed write leaves nothing behind; at most
`max_checkpoints` are kept, always including the best, the last good and the newest one. A directory belongs to one run:
two live trainings never share it, and a run that was killed takes its own directory over again. Nothing is locked: a
file that appears atomically names the owner.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from mlflow_stability.errors import CheckpointsRefused, SettingsError
from mlflow_stability.journal.process_identity import own_identity
from mlflow_stability.probes.ranks.rank_exchange import gloo_group
from mlflow_stability.recovery.checkpoints.state_file import (
    Layouts,
    WrittenFile,
    shards_of,
    without_shards,
    write_shards,
    write_state,
)
from mlflow_stability.recovery.checkpoints.stored_checkpoints import (
    META,
    METADATA,
    OWNER,
    STATE,
    CheckpointMeta,
    StoredCheckpoint,
    damage_of,
    listing,
    owner_lives,
    read_owner,
    sha256_of,
)
from mlflow_stability.recovery.state.state_copy import StateCopy
from mlflow_stability.recovery.state.value_tree import foreign_paths


class DirectoryOwner:
    def __init__(self, directory: Path, run: str) -> None:
        self._directory = directory
        self._mine = {"run": run, **own_identity().as_json()}

    def take(self, holds_checkpoints: bool) -> None:
        draft = self._draft(self._mine)
        try:
            try:
                os.link(draft, self._directory / OWNER)
            except OSError:  # there is an owner, or a file system without links
                owner = read_owner(self._directory)
                if owner_lives(owner) and owner != self._mine:
                    raise self._refusal(owner, "is in use by") from None
                if owner and owner.get("run") != self._mine["run"] and holds_checkpoints:
                    raise self._refusal(owner, "holds the checkpoints of") from None
                draft.replace(self._directory / OWNER)
        finally:
            draft.unlink(missing_ok=True)
        if not self.holds():
            raise self._refusal(read_owner(self._directory), "is taken by")

    def holds(self) -> bool:
        return read_owner(self._directory) == self._mine

    def release(self) -> None:
        """Leave the name of the run, without a process."""
        if self.holds():
            self._draft({**self._mine, "pid": 0}).replace(self._directory / OWNER)

    def _draft(self, owner: dict[str, Any]) -> Path:
        draft = self._directory / f".{OWNER}-{os.getpid()}"
        draft.write_text(json.dumps(owner))
        return draft

    def _refusal(self, owner: dict[str, Any], verb: str) -> CheckpointsRefused:
        who = f"process {owner.get('pid')} on {owner.get('host')}" if owner.get("pid") else "which has ended"
        return CheckpointsRefused(
            f"{self._directory} {verb} run {owner.get('run')} ({who}). This run writes no checkpoints. Give "
            "each run its own directory."
        )


def to_delete(checkpoints: Sequence[CheckpointMeta], most: int) -> list[CheckpointMeta]:
    """Return the checkpoints in excess; `checkpoints` are oldest first."""
    good = [meta for meta in checkpoints if meta.good and meta.finite]
    unverified = [meta for meta in checkpoints if not (meta.good and meta.finite)]
    excess = unverified[: -max(1, most // 2)]
    if not good:
        return excess
    best = min(good, key=lambda meta: meta.rank)
    may_go = [meta for meta in good if meta is not best and meta is not good[-1]]
    too_many = len(good) + max(1, len(unverified) - len(excess)) - most
    return excess + may_go[: max(0, too_many)]


_WRITING, _DELETING = ".writing-", ".deleting-"


class CheckpointStore:
    def __init__(
        self, directory: Path, run: str, max_checkpoints: int = 10, best_by: str = "", mode: str = "min"
    ) -> None:
        if max_checkpoints < 2:
            raise SettingsError(
                f"max_checkpoints must be at least 2 (a good one and a newer one), got {max_checkpoints}."
            )
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory = directory
        self._most = max_checkpoints
        self._best_by, self._mode = best_by, mode
        self._owner = DirectoryOwner(directory, run)
        self._owner.take(holds_checkpoints=bool(listing(directory)))
        for left in (*directory.glob(f"{_WRITING}*"), *directory.glob(f"{_DELETING}*")):  # of a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        self._prune()

    def commit(self, copy: StateCopy, loss: float, value: float | None = None) -> CheckpointMeta:
        """Write a state with its metric; OSError leaves the directory as it was."""
        draft = self.begin(copy.step)
        try:
            return self.finish(draft, copy, write_state(copy, draft / STATE), loss, value)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def begin(self, step: int) -> Path:
        """Return an empty folder for the files of a checkpoint."""
        if not self._owner.holds():
            raise OSError(f"Another process now uses {self.directory}")
        draft = self.directory / f"{_WRITING}{os.getpid()}-{step}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        return draft

    def finish(
        self,
        draft: Path,
        copy: StateCopy,
        written: WrittenFile,
        loss: float,
        value: float | None = None,
        shards: tuple[tuple[str, int, str], ...] = (),
    ) -> CheckpointMeta:
        """Write `meta.json`, which makes the files a checkpoint, and give the folder its name."""
        meta = CheckpointMeta(
            step=copy.step,
            loss=loss,
            sha256=written.sha256,
            size=written.size + sum(size for _, size, _ in shards),
            time=time.time(),
            left_out=foreign_paths(
                [*((optimizer.state, optimizer.shared) for optimizer in copy.optimizers), copy.extra]
            ),
            best_by=self._best_by,
            mode=self._mode,
            value=value,
            shards=shards,
        )
        _write_through(draft / META, meta.to_json())
        _sync(draft)
        final = self.directory / meta.name
        if final.exists():
            if not damage_of(StoredCheckpoint(final, meta.step, meta)):
                if value is not None:
                    self.set_value(meta.step, value)
                return meta
            self._delete(final)
        draft.rename(final)
        _sync(self.directory)
        self._prune()
        return meta

    def promote(self, step: int) -> None:
        for stored in self._of_step(step):
            if stored.meta is not None and not stored.meta.good:
                _replace_meta(stored.folder, dataclasses.replace(stored.meta, good=True))
        self._prune()

    def set_value(self, step: int, value: float) -> None:
        for stored in self._of_step(step):
            if stored.meta is not None:
                _replace_meta(stored.folder, dataclasses.replace(stored.meta, value=value))

    def reject(self, step: int) -> None:
        """Delete a checkpoint after trouble, unless it is verified already."""
        for stored in self._of_step(step):
            if not stored.is_good:
                self._delete(stored.folder)

    def close(self) -> None:
        self._owner.release()

    def _of_step(self, step: int) -> list[StoredCheckpoint]:
        return [stored for stored in listing(self.directory) if stored.step == step]

    def _prune(self) -> None:
        by_meta = {stored.meta: stored for stored in listing(self.directory) if stored.meta is not None}
        for meta in to_delete(list(by_meta), self._most):
            self._delete(by_meta[meta].folder)

    def _delete(self, folder: Path) -> None:
        """Rename first, so that a half-deleted folder is never taken for a damaged checkpoint."""
        doomed = folder.with_name(f"{_DELETING}{os.getpid()}-{folder.name}")
        folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _replace_meta(folder: Path, meta: CheckpointMeta) -> None:
    fresh = folder / f".{META}"
    _write_through(fresh, meta.to_json())
    fresh.replace(folder / META)
    _sync(folder)


def _write_through(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


WRITE_MINUTES = 30.0  # how long ranks wait for the slowest writer


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
        self._ranks, self._layouts = ranks, layouts
        self.store = store  # None on other ranks

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
            if answers[0][2]:
                raise OSError(answers[0][2])
            steps = sorted({answer[0] for answer in answers})
            if len(steps) > 1:
                raise OSError(f"processes are at different steps: {', '.join(map(str, steps))}")
            place = Path(answers[0][1])
            unseen = [not sees_it for sees_it in self._ranks.gather(place.is_dir())]
            if any(unseen):
                if self._ranks.is_first:
                    raise OSError(f"{_ranks_where(unseen)} cannot see {place.parent}: use a shared file system")
                return None
            layouts = self._layouts()
            write_shards(shards_of(copy, layouts, self._ranks.is_first), place, self._ranks.group)
            listed = self._ranks.gather(self._own_files(place))
            if self.store is None or draft is None:
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
            return self.store.finish(draft, copy, written, loss, value, tuple(files))
        finally:
            if draft is not None:
                shutil.rmtree(draft, ignore_errors=True)

    def _begin_draft(self, step: int, finite: bool) -> tuple[Path | None, str]:
        """Return the folder to write to, on rank 0, or the reason against writing."""
        if self.store is None or not finite:
            return None, ""
        try:
            return self.store.begin(step), ""
        except OSError as error:
            return None, str(error)

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
