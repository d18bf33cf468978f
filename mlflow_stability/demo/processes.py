"""Runs trainings side by side, each in a process of its own.

In: which trainings. Out: the losses of each, and the run it was recorded into. Guarantees: whatever a training prints
besides is passed on at once; however this ends, with Ctrl-C too, no training is left behind.
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
    what: str = ""
    """What goes wrong in it, or in its healthy twin does not."""
    causes: tuple[str, ...] = ()
    """The causes that a diagnosis may name."""


def train(
    trainings: Sequence[Training],
    stepped: Callable[[int], None] | None = None,
    said: Callable[[int, str], None] | None = None,
) -> None:
    """Run them to their ends, delivery included; `stepped` and `said` get the number of a training."""
    heard: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()
    with _started(trainings) as processes:
        for number, process in enumerate(processes):
            threading.Thread(target=_listen, args=(number, process, heard), daemon=True).start()
        going_on = len(processes)
        while going_on:
            number, line = heard.get()
            if line is None:
                going_on -= 1
            elif not _understood(trainings[number], line):
                if said is not None:
                    said(number, line)
            elif trainings[number].losses and stepped is not None:
                stepped(number)
        codes = [process.wait() for process in processes]
    for training, code in zip(trainings, codes, strict=True):
        if code != 0:
            raise StabilityError(
                f"The training {training.title!r} ended with exit code {code}; see what it said above."
            )


def _understood(training: Training, line: str) -> bool:
    """Take over what the script reports; False for anything else that it says."""
    if not line.startswith("{"):
        return False
    try:
        told = json.loads(line)
    except ValueError:
        return False
    if "loss" in told:
        training.losses.append(float(told["loss"]))
    training.parameters = told.get("parameters", training.parameters)
    training.run_id = told.get("run_id", training.run_id)
    training.what = told.get("what", training.what)
    training.causes = tuple(told.get("causes", training.causes))
    return True


@contextlib.contextmanager
def _started(trainings: Sequence[Training]) -> Iterator[list[subprocess.Popen[str]]]:
    """The running scripts; none of them runs afterwards."""
    processes: list[subprocess.Popen[str]] = []
    script = [sys.executable, "-m", "mlflow_stability.demo.training"]
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
    with process.stdout:
        for line in process.stdout:
            heard.put((number, line.rstrip()))
    heard.put((number, None))
