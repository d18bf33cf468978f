"""Checkpoint folders of one run, such as `rollback_ckpt-000500-3.8234/` with `state.pt` and `meta.json`.

Guarantees: a folder gets its name only when it is complete on disk; a failed write leaves nothing behind; at most
`max_checkpoints` are kept, always including the best, the last good and the newest one. A directory belongs to one run:
two live trainings never share it, and a run that was killed takes its own directory over again. Nothing is locked: a
file that appears atomically names the owner.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlflow_stability.errors import CheckpointsRefused, SettingsError
from mlflow_stability.journal.process_identity import own_identity
from mlflow_stability.recovery.checkpoints.state_file import WrittenFile, write_state
from mlflow_stability.recovery.checkpoints.stored_checkpoints import (
    META,
    OWNER,
    STATE,
    CheckpointMeta,
    StoredCheckpoint,
    damage_of,
    listing,
    owner_lives,
    read_owner,
)
from mlflow_stability.recovery.state.state_copy import StateCopy
from mlflow_stability.recovery.state.value_tree import foreign_paths


class DirectoryOwner:
    """Ownership of a checkpoint directory by one run."""

    def __init__(self, directory: Path, run: str) -> None:
        self._directory = directory
        self._mine = {"run": run, **own_identity().as_json()}

    def take(self, holds_checkpoints: bool) -> None:
        draft = self._draft(self._mine)
        try:
            try:
                os.link(draft, self._directory / OWNER)
            except OSError:  # there is an owner, or a file system without links
                self._refuse_unless_ours(read_owner(self._directory), holds_checkpoints)
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

    def _refuse_unless_ours(self, owner: dict[str, Any], holds_checkpoints: bool) -> None:
        if owner_lives(owner) and owner != self._mine:
            raise self._refusal(owner, "is in use by")
        if owner and owner.get("run") != self._mine["run"] and holds_checkpoints:
            raise self._refusal(owner, "holds the checkpoints of")

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

    def listing(self) -> list[StoredCheckpoint]:
        return listing(self.directory)

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
