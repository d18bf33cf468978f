"""Carries the checkpoints that a training keeps on its disk into its run.

In: a directory of checkpoints, where the training writes, promotes and removes them. Out: those that have proved
themselves good, in the run's artifacts; what the training has removed is removed there too. Guarantees: the directory
is only read; one that vanishes while it is being sent is no trouble; a store that cannot delete is told of once and
keeps what it has.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from pathlib import Path

from mlflow_stability.errors import TrackingError
from mlflow_stability.recovery.checkpoints import StoredCheckpoint, damage_of, listing
from mlflow_stability.tracking.store.store_errors import RefusedError
from mlflow_stability.tracking.write import RunCheckpoints, RunWriter

INTERVAL = 10.0


class CheckpointSink:
    """The checkpoints of one recording."""

    words = "checkpoints"

    def __init__(self, directory: Path, checkpoints: RunCheckpoints) -> None:
        self.done = False
        self.hurried = False
        self.refused = ""
        """Why the store does not take or delete them; empty while it does."""
        self._directory = directory
        self._checkpoints = checkpoints
        self._sent: set[str] | None = None
        self._looked_at = 0.0

    def flush(self, over: bool) -> bool:
        """Send one checkpoint, or remove one, where there is one to send or to remove."""
        if not (over or self.hurried) and time.monotonic() - self._looked_at < INTERVAL:
            return False
        if self._sent is None:
            self._sent = set(self._checkpoints.names()) if self._directory.is_dir() else set()
            self._drop_torn()
        good = [each for each in listing(self._directory) if each.is_good]
        waiting = [each for each in good if each.folder.name not in self._sent]
        if waiting:
            self._send(waiting[-1])  # the newest is what a restart wants
            return True
        gone = sorted(self._sent - {each.folder.name for each in good})
        if gone and not self.refused:
            self._remove(gone[0])
            return True
        self._looked_at = time.monotonic()
        self.done = over
        self.hurried = False
        return False

    def _send(self, checkpoint: StoredCheckpoint) -> None:
        """Send what lies there now: a copy of it, for the training may take it away meanwhile."""
        assert self._sent is not None
        name = checkpoint.folder.name
        try:
            with tempfile.TemporaryDirectory(prefix=".sending-", dir=self._directory.parent) as room:
                copy = Path(room, name)
                # The state is never written again in place, and `meta.json` is replaced whole: a link will do.
                shutil.copytree(checkpoint.folder, copy, copy_function=link_or_copy)
                if damage_of(StoredCheckpoint(copy, checkpoint.step, checkpoint.meta)):
                    self._sent.add(name)  # damaged on the disk: nothing that anybody could use
                    return
                self._checkpoints.upload(copy)
        except FileNotFoundError:
            return  # the training has just removed it
        except RefusedError as error:
            self.refused = str(error)
        except OSError as error:
            raise TrackingError(f"Could not read checkpoint {name}: {error}") from error
        self._sent.add(name)

    def _remove(self, name: str) -> None:
        assert self._sent is not None
        try:
            self._checkpoints.remove(name)
        except RefusedError as error:
            self.refused = str(error)
            return
        self._sent.discard(name)

    def _drop_torn(self) -> None:
        """What a courier before this one had not sent whole is sent again."""
        assert self._sent is not None
        with tempfile.TemporaryDirectory(prefix="mlflow-stability-") as room:
            self._sent = {each for each in self._sent if self._checkpoints.meta(each, Path(room)) is not None}


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Give a file that the training may remove a second name; a copy where the file system has no links.

    FileNotFoundError where it is gone.
    """
    try:
        Path(target).hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(source, target)


INTERVAL = 10.0
FOLDER = "stability/batches"
_FILE = re.compile(r"batch-(\d+)\.pt")


class BatchSink:
    """The kept batches of one recording."""

    words = "batches"

    def __init__(self, directory: Path, writer: RunWriter, number: int, offset: int) -> None:
        self.done = False
        self.hurried = False
        self.refused = ""
        """Why the store does not take one; empty while it takes all."""
        self._directory = directory
        self._writer = writer
        self._number = number
        self._offset = offset
        """What is added to a step for it to be as the run counts."""
        self._passed: set[str] = set()
        """What was sent, or cannot be."""
        self._looked_at = -INTERVAL

    def flush(self, over: bool) -> bool:
        """Send one file, where there is one to send."""
        if not (over or self.hurried) and time.monotonic() - self._looked_at < INTERVAL:
            return False
        for file in sorted(self._directory.iterdir()) if self._directory.is_dir() else ():
            found = _FILE.fullmatch(file.name)
            if found is not None and file.name not in self._passed:
                self._send(file, int(found[1]))
                self._passed.add(file.name)
                return True
        self._looked_at = time.monotonic()
        self.done = over
        self.hurried = False
        return False

    def _send(self, file: Path, step: int) -> None:
        name = f"recording-{self._number:03d}-batch-{step + self._offset:06d}.pt"
        try:
            with tempfile.TemporaryDirectory(prefix=".sending-", dir=self._directory.parent) as room:
                link_or_copy(file, Path(room, name))
                self._writer.upload(Path(room, name), FOLDER)
        except FileNotFoundError:
            return  # somebody has just removed it
        except RefusedError as error:
            self.refused = str(error)
        except OSError as error:
            raise TrackingError(f"Could not read batch {file.name}: {error}") from error
