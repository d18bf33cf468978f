"""What a watched step costs where the step itself costs next to nothing, and of one that takes ten milliseconds.

    python tests/benchmarks/small_step.py [--only default rollback] [--blocks 40] [--profile default] [--outlets]

A model of ten parameters is trained bare and watched in turns, blocks of five hundred steps each, and the CPU time of
the training's own thread is compared, block with block: the median of the differences, and, in blocks of a hundred, of
the ratios for a step that works for ten milliseconds. Blocks are that long because some signals are measured once in a
hundred steps, and because the first steps after a pause cost three times what all others do. `median` is the same for
a step by itself: one at which nothing is measured that is measured every ten or hundred steps, and nothing judged.
Beside it stands how many calls of functions in this package a step makes, by `sys.setprofile`: the median step, and
the mean of a hundred, which has the steps at which more is looked at in it.

With `--outlets`, each variant is compared in turns with the same and more: nothing (the noise); alerts to a URL,
Prometheus and a mirror into TensorBoard; alerts to a function.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import mlflow_stability
from mlflow_stability.alerts import Alert, alerts_of
from mlflow_stability.alerts.metrics.mirrors import mirrors_of
from mlflow_stability.session.session import Session
from mlflow_stability.vocabulary.settings import Settings

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "guard": {"guard": True},
    "rollback": {"rollback": True},
}
"""The arguments of `autolog()` of each variant."""
STEPS = 500
BUSY_STEPS = 100
WARM = 150
"""So many steps are trained before anything is measured: what is found out at the first ones is found out once."""
PACKAGE = str(Path(mlflow_stability.__file__).parent)


class Small:
    """A training of ten parameters; `busy`: for how many seconds each step works beside it."""

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
        """Of the thread that trains, for one step."""
        began = time.thread_time()
        for _ in range(steps):
            self.step()
        return (time.thread_time() - began) / steps


def own_seconds(session: Session, blocks: int) -> list[tuple[float, float]]:
    """What a bare step takes and by how much a watched one takes longer, block by block."""
    # Two trainings, for what is hooked into a module costs a paused session something as well.
    bare, watched = Small(), Small()
    session.resume()
    watched.seconds(WARM)
    found = []
    for _ in range(blocks):
        session.pause()
        before = bare.seconds(STEPS)
        session.resume()
        found.append((before, watched.seconds(STEPS) - before))
    session.pause()
    return found


def median_seconds(session: Session, blocks: int) -> float:
    """By how much the median step takes longer than the median bare one: the median over blocks."""
    bare, watched = Small(), Small()
    session.resume()
    watched.seconds(WARM)
    found = []
    for _ in range(blocks):
        session.pause()
        before = statistics.median(bare.seconds(1) for _ in range(STEPS))
        session.resume()
        found.append(statistics.median(watched.seconds(1) for _ in range(STEPS)) - before)
    session.pause()
    return statistics.median(found)


def busy_ratios(session: Session, blocks: int, busy: float = 0.01) -> list[float]:
    """How a watched step of ten milliseconds of CPU time compares with a bare one, block by block."""
    bare, watched = Small(), Small()
    session.resume()
    watched.seconds(WARM)
    bare.busy = watched.busy = busy
    found = []
    for _ in range(blocks):
        session.pause()
        before = bare.seconds(BUSY_STEPS)
        session.resume()
        found.append(watched.seconds(BUSY_STEPS) / before)
    session.pause()
    return found


def own_calls(session: Session, steps: int = 100) -> list[Counter[tuple[str, str]]]:
    """The calls of our functions, step by step, each by file and name."""
    training = Small()
    session.resume()
    training.seconds(WARM)
    found: list[Counter[tuple[str, str]]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            found[-1][os.path.relpath(code.co_filename, PACKAGE), code.co_name] += 1

    for _ in range(steps):
        found.append(Counter())
        sys.setprofile(note)
        training.step()
        sys.setprofile(None)
    session.pause()
    return found


def outlets() -> dict[str, dict[str, Any]]:
    """The arguments of `autolog()`: for what the courier does, and for a function with conditions on every step."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    rules = ("divergence", "loss>1e6", "grad_norm>1e6")
    alerts = alerts_of("json://127.0.0.1:9/hook")  # nobody listens there
    return {
        "nothing": {},
        "outlets": {"alerts": alerts, "prometheus_port": port, "mirrors": mirrors_of("tensorboard:runs/")},
        "function": {"alerts": alerts_of(Alert(lambda _: None, rules=rules))},
    }


def outlets_seconds(name: str, blocks: int, given: dict[str, Any]) -> list[tuple[float, float]]:
    """What a watched step takes, and by how much one of a session with more settings takes longer, block by block."""
    with watching(name) as plain, watching(name, **given) as other:
        trainings = []
        for session in (plain, other):
            trainings.append(Small())
            session.resume()
            trainings[-1].seconds(WARM)
            session.pause()
        found = []
        for block in range(blocks):
            taken = [0.0, 0.0]
            for at in ((0, 1), (1, 0))[block % 2]:
                session = (plain, other)[at]
                session.resume()
                taken[at] = trainings[at].seconds(STEPS)
                session.pause()
            found.append((taken[0], taken[1] - taken[0]))
    return found


def print_outlets(names: list[str], blocks: int) -> None:
    """A line for each variant, and one for the noise of each."""
    print(f"{'variant':<10}{'added':<9}{'us a step':>11}{'quartiles':>14}{'more':>7}")
    for name in names:
        for added, given in outlets().items():
            cost = outlets_seconds(name, blocks, given)
            low, middle, high = statistics.quantiles((1e6 * each for _, each in cost), n=4)
            before = 1e6 * statistics.median(each for each, _ in cost)
            print(f"{name:<10}{added:<9}{before:>11.0f}{f'{low:.0f}..{high:.0f}':>14}{middle:>+7.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--profile", nargs="*", choices=list(VARIANTS), default=[], help="list the calls of a step")
    parser.add_argument("--outlets", action="store_true", help="compare with and without alerts, Prometheus, mirrors")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.chdir(tempfile.mkdtemp(prefix="small-step-"))
    if options.outlets:
        print_outlets(options.only, options.blocks)
        return
    print(
        f"{'variant':<10}{'own calls':>10}{'mean':>8}{'files':>7}{'us a step':>11}{'quartiles':>14}{'median':>8}"
        f"{'bare':>6}{'of 10 ms':>10}"
    )
    for name in options.only:
        calls = with_session(name, own_calls)
        cost = with_session(name, lambda session: own_seconds(session, options.blocks))
        own, bare = [1e6 * each for _, each in cost], 1e6 * statistics.median(each for each, _ in cost)
        ordinary = 1e6 * with_session(name, lambda session: median_seconds(session, options.blocks))
        busy = with_session(name, lambda session: busy_ratios(session, max(options.blocks // 2, 2)))
        counts = [sum(each.values()) for each in calls]
        median = statistics.median_low(counts)
        step = calls[counts.index(median)]
        low, middle, high = statistics.quantiles(own, n=4)
        print(
            f"{name:<10}{median:>10}{statistics.mean(counts):>8.0f}{len({file for file, _ in step}):>7}{middle:>11.0f}"
            f"{f'{low:.0f}..{high:.0f}':>14}{ordinary:>8.0f}{bare:>6.0f}{statistics.median(busy):>10.3f}"
        )
        if name in options.profile:
            print_profile(step)


def with_session(name: str, measure: Callable[[Session], Any]) -> Any:
    """What is measured with a session of a variant, that ends afterwards."""
    with watching(name) as session:
        return measure(session)


@contextmanager
def watching(name: str, **more: Any) -> Iterator[Session]:
    """A session of a variant, paused; it ends afterwards."""
    session = Session(Settings(strict=True, exclusive=True, silent=True, **VARIANTS[name], **more))
    session.install()
    session.pause()
    try:
        yield session
    finally:
        session.stop()


def print_profile(step: Counter[tuple[str, str]]) -> None:
    """The calls of one step, file by file."""
    files: Counter[str] = Counter()
    for (file, _), count in step.items():
        files[file] += count
    for file, total in files.most_common():
        inside = ", ".join(f"{name} {count}" for (where, name), count in step.most_common() if where == file)
        print(f"  {total:>4}  {file}: {inside}")


if __name__ == "__main__":
    main()
