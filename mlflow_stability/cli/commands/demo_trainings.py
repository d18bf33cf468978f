"""Runs the trainings of the demo side by side, each in a process of its own.

In: how many steps. Out: the loss of every step of each, and the run of the one that was recorded. Guarantees: what a
training says besides is shown at once; however this ends, with Ctrl-C too, no training is left behind.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from mlflow_stability.errors import StabilityError
from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.terminal_kit import number_text

PATIENCE = 5.0
"""So many seconds an interrupted training has for its last words."""


@dataclass(slots=True)
class Training:
    """One of them, while it goes on and after it."""

    title: str
    options: tuple[str, ...] = ()
    losses: list[float] = field(default_factory=list)
    parameters: int = 0
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Trainings:
    """All of them."""

    twin: Training = field(default_factory=lambda: Training("healthy reference"))
    bare: Training = field(default_factory=lambda: Training("bare", ("--ill",)))
    rescued: Training = field(default_factory=lambda: Training("autolog(rollback=True)", ("--ill", "--autopilot")))

    @property
    def all(self) -> tuple[Training, Training, Training]:
        """In the order in which they are shown."""
        return self.twin, self.bare, self.rescued


def train(steps: int, notes: Console) -> Trainings:
    """Run them to their ends, delivery included."""
    trainings = Trainings()
    heard: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()
    with _bars(steps, trainings.all, notes) as (progress, tasks), _started(steps, trainings.all) as processes:
        for number, process in enumerate(processes):
            threading.Thread(target=_listen, args=(number, process, heard), daemon=True).start()
        going_on = len(processes)
        while going_on:
            number, line = heard.get()
            training = trainings.all[number]
            if line is None:
                going_on -= 1
            elif not _understood(training, line):
                notes.print(Text(f"{training.title}: {plain(line)}"), soft_wrap=True)
            elif training.losses:
                shown = number_text(training.losses[-1])
                progress.update(tasks[number], completed=len(training.losses), loss=f"loss {shown}")
        codes = [process.wait() for process in processes]
    for training, code in zip(trainings.all, codes, strict=True):
        if code != 0:
            raise StabilityError(
                f"The training {training.title!r} ended with exit code {code}; see what it said above."
            )
    return trainings


def _understood(training: Training, line: str) -> bool:
    """Take over what the script reports; False for anything else that it says."""
    if not line.startswith("{"):
        return False
    try:
        said = json.loads(line)
    except ValueError:
        return False
    if "loss" in said:
        training.losses.append(float(said["loss"]))
    training.parameters = said.get("parameters", training.parameters)
    training.run_id = said.get("run_id", training.run_id)
    return True


@contextlib.contextmanager
def _bars(steps: int, trainings: Sequence[Training], notes: Console) -> Iterator[tuple[Progress, list[TaskID]]]:
    """How far each is, for a person at a terminal."""
    columns = TextColumn("{task.description}"), BarColumn(24), TextColumn("step {task.completed}  {task.fields[loss]}")
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as progress:
        yield progress, [progress.add_task(each.title, total=steps, loss="") for each in trainings]


@contextlib.contextmanager
def _started(steps: int, trainings: Sequence[Training]) -> Iterator[list[subprocess.Popen[str]]]:
    """The running scripts; none of them runs afterwards."""
    processes: list[subprocess.Popen[str]] = []
    script = [sys.executable, "-m", "mlflow_stability.demo.training", "--steps", str(steps)]
    try:
        processes.extend(_start([*script, *training.options]) for training in trainings)
        yield processes
    finally:
        _end(processes)


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        start_new_session=True,  # Ctrl-C reaches us alone, and each of them once, through us
    )


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Interrupt what still runs, so that a recording can say so; then make sure."""
    running = [each for each in processes if each.poll() is None]
    until = time.monotonic() + PATIENCE
    try:
        for each in running:
            each.send_signal(signal.SIGINT)
        for each in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(max(0.0, until - time.monotonic()))
    finally:  # a second Ctrl-C is no reason to leave one behind
        for each in running:
            each.kill()
            each.wait()


def _listen(number: int, process: subprocess.Popen[str], heard: queue.SimpleQueue[tuple[int, str | None]]) -> None:
    """Pass on what a training says; None when it has nothing more to say."""
    assert process.stdout is not None
    for line in process.stdout:
        heard.put((number, line.rstrip()))
    heard.put((number, None))
