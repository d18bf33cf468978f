"""Cost of a watched step where the step itself costs almost nothing."""

from __future__ import annotations

import math
import os
import socket
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from benchmarks.table import Table, table_of

import mlflow_stability
from mlflow_stability import RollbackPolicy
from mlflow_stability.alerts.alert import Alert, read_alerts
from mlflow_stability.alerts.mirrors import read_mirrors
from mlflow_stability.session.session import Session
from mlflow_stability.vocabulary.settings import Settings

VARIANTS: dict[str, dict[str, Any]] = {"default": {}, "guard": {"guard": True}, "rollback": {"rollback": True}}
"""Arguments of `autolog()` of each variant."""
TITLES = {"default": "`autolog()`", "guard": "`autolog(guard=True)`", "rollback": "`autolog(rollback=True)`"}
STEPS = 500
"""Steps of a block: some signals are measured once in a hundred steps, and the first steps after a pause cost more."""
BUSY_STEPS = 100
WARM_UP_STEPS = 150
PACKAGE = str(Path(mlflow_stability.__file__).parent)
Calls = Counter[tuple[str, str]]
"""Calls of a step, by file and function."""
POLICY = RollbackPolicy(snapshot_every=20, healthy_after=10, rollback_after_skips=5, rollback_checkpoint_interval=10**9)
HEALTHY_STEPS, MAX_BROKEN_STEPS = 121, 20


class Small:
    """A training of ten parameter tensors; `busy`: seconds that each step works beside it."""

    def __init__(self, busy: float = 0.0) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(5)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.data = torch.randn(4, 8)
        self.busy = busy
        self.matrix = torch.randn(64, 64)

    def step(self) -> None:
        if self.busy:
            until = time.thread_time() + self.busy
            while time.thread_time() < until:
                self.matrix @ self.matrix
        self.model(self.data).pow(2).mean().backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def seconds(self, steps: int) -> float:
        """Return the CPU seconds of this thread for one step."""
        began = time.thread_time()
        for _ in range(steps):
            self.step()
        return (time.thread_time() - began) / steps


class CallCount:
    """Counts calls of functions of the package while a step runs."""

    def __init__(self) -> None:
        self.steps: list[Calls] = []

    def __enter__(self) -> None:
        self.steps.append(Counter())
        sys.setprofile(self._note)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            self.steps[-1][os.path.relpath(code.co_filename, PACKAGE), code.co_qualname] += 1


def in_turns(
    session: Session, blocks: int, measure: Callable[[Small], float], busy: float = 0.0
) -> list[tuple[float, float]]:
    """Measure a bare and a watched training in turns, block by block."""
    # Two trainings, because the hooks of a module cost a paused session something as well.
    bare, watched = Small(), Small()
    session.resume()
    watched.seconds(WARM_UP_STEPS)
    bare.busy = watched.busy = busy
    pairs = []
    for _ in range(blocks):
        session.pause()
        before = measure(bare)
        session.resume()
        pairs.append((before, measure(watched)))
    session.pause()
    return pairs


def own_seconds(session: Session, blocks: int) -> list[tuple[float, float]]:
    """Return the seconds of a bare step, and what a watched one adds, by block."""
    pairs = in_turns(session, blocks, lambda training: training.seconds(STEPS))
    return [(bare, watched - bare) for bare, watched in pairs]


def median_seconds(session: Session, blocks: int) -> float:
    """Return what the median step takes longer than the median bare one."""
    pairs = in_turns(session, blocks, lambda training: statistics.median(training.seconds(1) for _ in range(STEPS)))
    return statistics.median(watched - bare for bare, watched in pairs)


def busy_ratios(session: Session, blocks: int, busy: float = 0.01) -> list[float]:
    """Return the ratio of a watched step of ten milliseconds of CPU time to a bare one, by block."""
    pairs = in_turns(session, blocks, lambda training: training.seconds(BUSY_STEPS), busy)
    return [watched / bare for bare, watched in pairs]


def own_calls(session: Session, steps: int = 100) -> list[Calls]:
    """Return the calls of our functions, step by step."""
    training, count = Small(), CallCount()
    session.resume()
    training.seconds(WARM_UP_STEPS)
    for _ in range(steps):
        with count:
            training.step()
    session.pause()
    return count.steps


@contextmanager
def watching(name: str, **more: Any) -> Iterator[Session]:
    """Yield a paused session of a variant, and stop it afterwards."""
    session = Session(Settings(strict=True, exclusive=True, silent=True, **VARIANTS[name], **more))
    session.install()
    session.pause()
    try:
        yield session
    finally:
        session.stop()


def with_session(name: str, measure: Callable[[Session], Any]) -> Any:
    with watching(name) as session:
        return measure(session)


def small_step(only: tuple[str, ...] = tuple(VARIANTS), blocks: int = 40) -> Iterator[Table]:
    """Compare the CPU time of the training's own thread, bare and watched, block by block.

    `added us` is the median of the differences of blocks, for the mean step; `added us (median step)` the same for a
    step at which nothing is measured that is measured every ten or a hundred steps; `ratio at 10 ms` the ratio for a
    step that works for ten milliseconds.
    """
    torch.set_num_threads(1)
    rows = []
    for name in only:
        counts = [calls.total() for calls in with_session(name, own_calls)]
        cost = with_session(name, lambda session: own_seconds(session, blocks))
        low, middle, high = statistics.quantiles((1e6 * own for _, own in cost), n=4)
        rows.append(
            {
                "variant": TITLES[name],
                "calls": statistics.median_low(counts),
                "mean calls": statistics.fmean(counts),
                "added us": middle,
                "quartiles": f"{low:.0f}..{high:.0f}",
                "added us (median step)": 1e6 * with_session(name, lambda session: median_seconds(session, blocks)),
                "bare us": 1e6 * statistics.median(bare for bare, _ in cost),
                "ratio at 10 ms": statistics.median(
                    with_session(name, lambda session: busy_ratios(session, max(blocks // 2, 2)))
                ),
            }
        )
    yield table_of("", rows)


def outlets(only: tuple[str, ...] = tuple(VARIANTS), blocks: int = 40) -> Iterator[Table]:
    """Compare a watched step with and without alerts to a URL, Prometheus, a TensorBoard mirror, and a function."""
    torch.set_num_threads(1)
    rows = []
    for name in only:
        for added, given in outlet_arguments().items():
            cost = outlet_seconds(name, blocks, given)
            low, middle, high = statistics.quantiles((1e6 * more for _, more in cost), n=4)
            before = 1e6 * statistics.median(plain for plain, _ in cost)
            rows.append(
                {
                    "variant": name,
                    "added": added,
                    "us a step": before,
                    "more": middle,
                    "quartiles": f"{low:.0f}..{high:.0f}",
                }
            )
    yield table_of("", rows)


def outlet_arguments() -> dict[str, dict[str, Any]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    rules = ("divergence", "loss>1e6", "grad_norm>1e6")
    alerts = read_alerts("json://127.0.0.1:9/hook")  # no process listens there
    return {
        "nothing": {},
        "outlets": {"alerts": alerts, "prometheus_port": port, "mirrors": read_mirrors("tensorboard:runs/")},
        "function": {"alerts": read_alerts(Alert(lambda _: None, rules=rules))},
    }


def outlet_seconds(name: str, blocks: int, given: dict[str, Any]) -> list[tuple[float, float]]:
    """Return the seconds of a watched step, and what more settings add, by block."""
    with watching(name) as plain, watching(name, **given) as other:
        sessions, trainings = (plain, other), (Small(), Small())
        for session, training in zip(sessions, trainings, strict=True):
            session.resume()
            training.seconds(WARM_UP_STEPS)
            session.pause()
        pairs = []
        for block in range(blocks):
            taken = [0.0, 0.0]
            for at in ((0, 1), (1, 0))[block % 2]:
                sessions[at].resume()
                taken[at] = trainings[at].seconds(STEPS)
                sessions[at].pause()
            pairs.append((taken[0], taken[1] - taken[0]))
    return pairs


def step_calls(only: tuple[str, ...] = (*VARIANTS, "rolls back"), files: str = "") -> Iterator[Table]:
    """Count calls, functions and files of each kind of step; `files` lists the files of one kind.

    `plain` is the median of a hundred steps; every tenth and hundredth step measures more; `judged` runs the detectors
    over the 64 steps before it; `rolls back` is the step that restores a snapshot.
    """
    torch.set_num_threads(1)
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    os.environ["MLFLOW_TRACKING_URI"] = f"file:{Path.cwd()}/mlruns"
    rows, listed = [], []
    for name in only:
        kinds = {name: step_that_rolls_back()} if name == "rolls back" else with_session(name, watched_steps)
        for kind, calls in kinds.items():
            by_file = Counter[str]()
            for (file, _), number in calls.items():
                by_file[file] += number
            rows.append(
                {
                    "variant": TITLES.get(name, TITLES["rollback"]),
                    "step": kind,
                    "calls": calls.total() / (100 if kind == "mean" else 1),
                    "functions": len(calls),
                    "files": len(by_file),
                }
            )
            if kind == files:
                listed += [{"variant": name, "file": file, "calls": number} for file, number in by_file.most_common()]
    yield table_of("", rows)
    if listed:
        yield table_of(f"Files of a step: {files}", listed)


def watched_steps(session: Session) -> dict[str, Calls]:
    """Return the calls of each kind of step of a healthy training."""
    training, count = Small(), CallCount()
    session.resume()
    training.seconds(WARM_UP_STEPS)
    numbers = []
    for _ in range(100):
        with count:
            training.step()
        numbers.append(session.step)
    session.pause()
    by_number = dict(zip(numbers, count.steps, strict=True))
    plain = [calls for number, calls in by_number.items() if number % 10 not in (0, 1, 2)]
    tenth = [calls for number, calls in by_number.items() if number % 10 == 0 and number % 100]
    return {
        "plain": _median(plain),
        "tenth": _median(tenth),
        "hundredth": next(calls for number, calls in by_number.items() if number % 100 == 0),
        "judged": max(plain, key=Counter.total),
        "mean": sum(count.steps, Counter()),
    }


def step_that_rolls_back() -> Calls:
    """Return the calls of the rollback in a training whose losses become NaN."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    mlflow_stability.autolog(rollback=POLICY, silent=True)
    count = CallCount()
    weight = next(model.parameters())
    before = weight.detach().clone()
    for number in range(HEALTHY_STEPS + MAX_BROKEN_STEPS):
        batch = torch.randn(16, 8)
        is_broken = number >= HEALTHY_STEPS
        with count:
            loss = ((model(batch) - batch.sum(1, keepdim=True)) ** 2).mean()
            (loss * math.nan if is_broken else loss).backward()
            optimizer.step()
            optimizer.zero_grad()
        if is_broken and not torch.equal(before, weight):  # steps are skipped until the rollback
            break
        before = weight.detach().clone()
    else:
        raise SystemExit("The training was not rolled back.")
    mlflow_stability.autolog(disable=True)
    return count.steps[-1]


def _median(steps: list[Calls]) -> Calls:
    return sorted(steps, key=Counter.total)[len(steps) // 2]
