"""Checkpoint folders of one run: atomic writes, and which ones are deleted.

In: copies of a state. Out: folders `rollback_ckpt-000500-3.8234/` with `state.pt` and `meta.json`. Guarantees: a
folder gets its name only when all of it is on the disk; a failed write leaves nothing behind; at most
`max_checkpoints` are kept, always including the best and the last good one, and one place for the newest, unverified
one; a directory belongs to one run.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from mlflow_stability.errors import SettingsError
from mlflow_stability.recovery.checkpoints.checkpoint_meta import META, STATE, CheckpointMeta
from mlflow_stability.recovery.checkpoints.checkpoint_reader import StoredCheckpoint, damage_of, listing
from mlflow_stability.recovery.checkpoints.directory_owner import DirectoryOwner
from mlflow_stability.recovery.checkpoints.state_file import WrittenFile, write_state
from mlflow_stability.recovery.state.state_copy import StateCopy
from mlflow_stability.recovery.state.value_tree import foreign_paths


def to_delete(checkpoints: Sequence[CheckpointMeta], most: int) -> list[CheckpointMeta]:
    """Those that are too many, of checkpoints that are given oldest first."""
    good = [each for each in checkpoints if each.good and each.finite]
    unproved = [each for each in checkpoints if not (each.good and each.finite)]
    spare_unproved = max(1, most // 2)
    gone = unproved[:-spare_unproved]
    if not good:
        return gone
    best = min(good, key=lambda each: each.rank)
    may_go = [each for each in good if each is not best and each is not good[-1]]
    too_many = len(good) + max(1, len(unproved) - len(gone)) - most
    return gone + may_go[: max(0, too_many)]


_WRITING, _DELETING = ".writing-", ".deleting-"


class CheckpointStore:
    """The checkpoints of one run, in its directory."""

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
        """Write a state with its metric; raises OSError where the disk refuses, and leaves things as they were."""
        draft = self.begin(copy.step)
        try:
            return self.finish(draft, copy, write_state(copy, draft / STATE), loss, value)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def begin(self, step: int) -> Path:
        """An empty folder for the files of a checkpoint."""
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
        """All files are there: write `meta.json`, which makes a checkpoint of them, and give the folder its name."""
        meta = CheckpointMeta(
            step=copy.step,
            loss=loss,
            sha256=written.sha256,
            size=written.size + sum(size for _, size, _ in shards),
            time=time.time(),
            left_out=foreign_paths([*((each.state, each.shared) for each in copy.optimizers), copy.extra]),
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
        """This checkpoint has proved itself."""
        for each in self._of_step(step):
            if each.meta is not None and not each.meta.good:
                _replace_meta(each.folder, dataclasses.replace(each.meta, good=True))
        self._prune()

    def set_value(self, step: int, value: float) -> None:
        """The metric of this checkpoint became known after its state was written."""
        for each in self._of_step(step):
            if each.meta is not None:
                _replace_meta(each.folder, dataclasses.replace(each.meta, value=value))

    def reject(self, step: int) -> None:
        """This checkpoint led to trouble; a good one stays what it is."""
        for each in self._of_step(step):
            if not each.is_good:
                self._delete(each.folder)

    def listing(self) -> list[StoredCheckpoint]:
        """What is there, oldest first."""
        return listing(self.directory)

    def close(self) -> None:
        """Leave the directory to the run's next process."""
        self._owner.release()

    def _of_step(self, step: int) -> list[StoredCheckpoint]:
        return [each for each in self.listing() if each.step == step]

    def _prune(self) -> None:
        shelf = {each.meta: each for each in self.listing() if each.meta is not None}
        for meta in to_delete(list(shelf), self._most):
            self._delete(shelf[meta].folder)

    def _delete(self, folder: Path) -> None:
        """First the name, so that what is half deleted is never taken for a damaged checkpoint."""
        doomed = folder.with_name(f"{_DELETING}{os.getpid()}-{folder.name}")
        folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _replace_meta(folder: Path, meta: CheckpointMeta) -> None:
    """Write `meta.json` anew; there is a whole one at any time."""
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
    """Make sure that the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
