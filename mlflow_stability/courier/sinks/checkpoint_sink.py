"""Deliver checkpoints and batches from the training's disk.

Guarantees: their directory is only read; a vanished file is no error; one that the store refuses is skipped, and noted
with the recording.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.sinks.sink import RunSink
from mlflow_stability.errors import TrackingError
from mlflow_stability.recovery.checkpoints.stored_checkpoints import StoredCheckpoint, damage_of, listing
from mlflow_stability.tracking.client import RefusedError
from mlflow_stability.tracking.run_writer import RunWriter

BATCHES_FOLDER = "stability/batches"
_BATCH = re.compile(r"batch-(\d+)\.pt")


class KeptFileSink(RunSink):
    """Files that the training keeps, and may remove at any moment."""

    interval = 10.0

    def __init__(self, delivered: Delivered, writer: RunWriter, directory: Path) -> None:
        super().__init__(delivered, writer)
        self.refused = ""  # why the store does not take or delete one, if so
        self._directory = directory

    def flush(self, over: bool) -> bool:
        """Send or remove one file, if there is one."""
        return self.due(over) and (self._send_next() or self.rest(over))

    def _send_next(self) -> bool:
        raise NotImplementedError

    def _send(self, source: Path, name: str, send: Callable[[Path], object]) -> bool:
        """Send a link or a copy, as the training may remove the file meanwhile; False where it has."""
        try:
            with tempfile.TemporaryDirectory(prefix=".sending-", dir=self._directory.parent) as room:
                copy = Path(room, name)
                if source.is_dir():
                    shutil.copytree(source, copy, copy_function=_link_or_copy)
                else:
                    _link_or_copy(source, copy)
                with self._noting_refusals():
                    send(copy)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise TrackingError(f"Could not read {source.name}: {error}") from error
        return True

    @contextmanager
    def _noting_refusals(self) -> Iterator[None]:
        try:
            yield
        except RefusedError as error:
            self.refused = str(error)


class CheckpointSink(KeptFileSink):
    """Good checkpoints of one recording; those that the training removes are removed."""

    words = "checkpoints"

    def __init__(self, delivered: Delivered, writer: RunWriter, directory: Path) -> None:
        super().__init__(delivered, writer, directory)
        self._checkpoints = writer.checkpoints()
        self._sent: set[str] | None = None

    def _send_next(self) -> bool:
        if self._sent is None:
            self._sent = self._whole() if self._directory.is_dir() else set()
        good = {checkpoint.folder.name: checkpoint for checkpoint in listing(self._directory) if checkpoint.is_good}
        waiting = [name for name in good if name not in self._sent]
        if waiting:
            name = waiting[-1]  # the newest is what a restart wants
            checkpoint = good[name]

            def upload(copy: Path) -> None:
                if not damage_of(StoredCheckpoint(copy, checkpoint.step, checkpoint.meta)):
                    self._checkpoints.upload(copy)

            if self._send(checkpoint.folder, name, upload):
                self._sent.add(name)
            return True
        removed = sorted(self._sent - good.keys())
        if removed and not self.refused:
            with self._noting_refusals():
                self._checkpoints.remove(removed[0])
                self._sent.discard(removed[0])
            return True
        return False

    def _whole(self) -> set[str]:
        """Return those in the run; incomplete ones are sent again."""
        with tempfile.TemporaryDirectory(prefix="mlflow-stability-") as room:
            names = self._checkpoints.names()
            return {name for name in names if self._checkpoints.meta(name, Path(room)) is not None}


class BatchSink(KeptFileSink):
    """Batches of broken steps of one recording, if the user asked for them.

    A new courier sends all of them, a few at most, again over themselves.
    """

    words = "batches"

    def __init__(self, delivered: Delivered, writer: RunWriter, directory: Path) -> None:
        super().__init__(delivered, writer, directory)
        self._passed: set[str] = set()  # sent, or refused

    def _send_next(self) -> bool:
        for file in sorted(self._directory.iterdir()) if self._directory.is_dir() else ():
            match = _BATCH.fullmatch(file.name)
            if match is not None and file.name not in self._passed:
                name = f"recording-{self._number:03d}-batch-{int(match[1]) + self._offset:06d}.pt"
                self._send(file, name, lambda copy: self._writer.upload(copy, BATCHES_FOLDER))
                self._passed.add(file.name)
                return True
        return False


def _link_or_copy(source: Path | str, target: Path | str) -> None:
    """Link a file, or copy it where the file system has no links; FileNotFoundError where it is gone."""
    try:
        Path(target).hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(source, target)
