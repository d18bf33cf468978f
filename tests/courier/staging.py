"""A training without torch: a process that can be killed, and a journal in its name."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from forked.processes import DELIVERY, Process, start

import mlflow_stability
from mlflow_stability.courier.sinks.sink import JournalReader
from mlflow_stability.journal.journal import JournalWriter
from mlflow_stability.journal.layout import COURIER_LOG, TRAINING
from mlflow_stability.journal.process_identity import identity_of
from mlflow_stability.tracking.read.run_reader import RunReader
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.run import Closing, Opening

SIGNALS = (Signal("loss"), Signal("grad_norm"), Signal("learning_rate", "group_1"), Signal("grad_norm", "block.0"))


class Training:
    """A process that does nothing until it is terminated."""

    def __init__(self, root: Path, uri: str, **opening: Any) -> None:
        self.process = subprocess.Popen(["sleep", "600"])
        root.mkdir(mode=0o700, exist_ok=True)
        self.folder = root / f"20260101-000000-{self.process.pid}-{os.urandom(2).hex()}"
        self.folder.mkdir(mode=0o700)
        (self.folder / TRAINING).symlink_to(json.dumps(identity_of(self.process.pid).as_json()))
        self.uri = uri
        self._opening = {
            "pid": self.process.pid,
            "process_started": 0.0,
            "host": socket.gethostname(),
            "tracking_uri": uri,
            "directory": str(root.parent),
        }
        self._opening |= opening
        self.journal = self.begin(self.folder.name)

    def begin(self, recording: str, **opening: Any) -> JournalWriter:
        """Another recording of the same process."""
        result = Opening(recording, time=time.time(), **{**self._opening, **opening})
        count = len(list(self.folder.glob("*/journal")))
        return JournalWriter(self.folder / f"{count:03d}-{recording}", result)

    def train(self, first: int, last: int, pause: float = 0.0) -> None:
        """Journal these steps."""
        for step in range(first, last + 1):
            self.journal.append(reading(step))
            if pause:
                time.sleep(pause)

    def end(self, closing: Closing | None = None) -> None:
        """End the process, with or without a goodbye."""
        if closing is not None:
            self.journal.append(closing)
        self.journal.close()
        self.process.kill()
        self.process.wait()

    def start_courier(self, **environment: str) -> Process:
        """A real courier for this training."""
        with (self.folder / COURIER_LOG).open("ab") as log:
            return start(
                "-m",
                "mlflow_stability.courier",
                str(self.folder),
                environment={
                    **os.environ,
                    "PYTHONPATH": str(Path(mlflow_stability.__file__).parent.parent),
                    "MLFLOW_TRACKING_URI": self.uri,
                    **environment,
                },
                printed=log,
                modules=DELIVERY,
            )


class Fed:
    """Sinks and the reader that feeds them."""

    def __init__(self, journal: JournalWriter, *sinks: Any) -> None:
        self.sinks = sinks
        self.reader = JournalReader(journal.folder)
        self.reader.add(*sinks)

    def advance(self, over: bool) -> bool:
        """What the courier does again and again."""
        moved = self.reader.advance()
        for sink in self.sinks:
            moved |= sink.flush(over)
        return moved

    def drive(self) -> None:
        """To the end."""
        while not all(sink.done for sink in self.sinks):
            self.advance(over=True)


def reading(step: int) -> StepReading:
    """What was measured at a step: every number tells its step."""
    norm = math.inf if step % 97 == 0 else step + 0.25
    return StepReading(step, SIGNALS, (float(step), norm, 0.001, step + 0.5), 0, 1_700_000_000.0 + step / 8)


def kill(process: Process) -> None:
    """As the system would."""
    process.send_signal(signal.SIGKILL)
    process.wait()


def bookkeeping(run_id: str, tracking_uri: str | None = None) -> dict[str, Any]:
    """What the run's first recording knows of itself."""
    reader = RunReader(run_id, tracking_uri)
    by_name: dict[str, Any] = reader.fetched(
        "stability/data/recording-000.json", lambda file: json.loads(file.read_text())
    )
    return by_name
