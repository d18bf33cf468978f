"""Run trainings side by side, each in a process of its own.

Guarantees: other output of a training is passed on at once; however this ends, with Ctrl-C too, no training is left
behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from mlflow_stability.errors import StabilityError

INTERRUPT_SECONDS = 5.0  # time for an interrupted training to end by itself


@dataclass(slots=True)
class Training:
    title: str
    options: tuple[str, ...] = ()
    losses: list[float] = field(default_factory=list)
    parameters: int = 0
    run_id: str | None = None
    what: str = ""  # what goes wrong, in one sentence
    causes: tuple[str, ...] = ()  # the causes that are right in a diagnosis


def train(
    trainings: Sequence[Training],
    on_step: Callable[[int], None] | None = None,
    on_line: Callable[[int, str], None] | None = None,
) -> None:
    """Run trainings to their ends, delivery included; the callbacks get the number of a training."""
    output: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()
    with _started(trainings) as processes:
        for number, process in enumerate(processes):
            threading.Thread(target=_read_output, args=(number, process, output), daemon=True).start()
        running = len(processes)
        while running:
            number, line = output.get()
            if line is None:
                running -= 1
            elif not _read_report(trainings[number], line):
                if on_line is not None:
                    on_line(number, line)
            elif trainings[number].losses and on_step is not None:
                on_step(number)
        codes = [process.wait() for process in processes]
    for training, code in zip(trainings, codes, strict=True):
        if code != 0:
            raise StabilityError(
                f"The training {training.title!r} ended with exit code {code}; see what it said above."
            )


def _read_report(training: Training, line: str) -> bool:
    """Read a line of JSON of the script; return False for any other output."""
    if not line.startswith("{"):
        return False
    try:
        report = json.loads(line)
    except ValueError:
        return False
    if "loss" in report:
        training.losses.append(float(report["loss"]))
    training.parameters = report.get("parameters", training.parameters)
    training.run_id = report.get("run_id", training.run_id)
    training.what = report.get("what", training.what)
    training.causes = tuple(report.get("causes", training.causes))
    return True


@contextlib.contextmanager
def _started(trainings: Sequence[Training]) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the scripts; end those that still run afterwards."""
    processes: list[subprocess.Popen[str]] = []
    script = [sys.executable, "-m", "mlflow_stability.demo.training"]
    try:
        for training in trainings:
            process = subprocess.Popen(
                [*script, *training.options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                env={**os.environ, "PYTHONIOENCODING": "utf-8"},
                start_new_session=True,  # Ctrl-C reaches only this process, which interrupts each of them once
            )
            processes.append(process)
        yield processes
    finally:
        _end(processes)


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Interrupt what still runs, so that a recording can note it; then kill it."""
    running = [process for process in processes if process.poll() is None]
    deadline = time.monotonic() + INTERRUPT_SECONDS
    try:
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    finally:  # also after a second Ctrl-C
        for process in running:
            process.kill()
            process.wait()


def _read_output(
    number: int, process: subprocess.Popen[str], output: queue.SimpleQueue[tuple[int, str | None]]
) -> None:
    """Pass on the lines of a training, then None."""
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            output.put((number, line.rstrip()))
    output.put((number, None))
