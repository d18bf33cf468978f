"""How many calls of functions in this package a watched step makes, and through how many functions and files they go.

    python tests/benchmarks/step_calls.py [--only default rollback] [--files "rolls back"]

The training is that of `small_step.py`. `plain` is the median of a hundred steps; every tenth and hundredth step
measures more; `judged` is a step at which the detectors look at the 64 steps before it; `mean` is that of all hundred.
`rolls back` is a training whose losses are NaN from a step on, at the step that takes it back to a snapshot.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from small_step import PACKAGE, VARIANTS, WARM, Small, with_session

import mlflow_stability
from mlflow_stability import RollbackPolicy
from mlflow_stability.session.session import Session

Calls = Counter[tuple[str, str]]
"""The calls of a step, by file and function."""
POLICY = RollbackPolicy(snapshot_every=20, healthy_after=10, rollback_after_skips=5, rollback_checkpoint_interval=10**9)
HEALTHY_STEPS, MAX_BROKEN_STEPS = 121, 20


class CallCount:
    """Counts calls while a step runs."""

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


def watched_steps(session: Session) -> dict[str, Calls]:
    """The kinds of steps of an untroubled training."""
    training, count = Small(), CallCount()
    session.resume()
    training.seconds(WARM)
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
    """Of a training whose losses are NaN after some time."""
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
        if is_broken and not torch.equal(before, weight):  # steps are skipped until it goes back
            break
        before = weight.detach().clone()
    else:
        raise SystemExit("The training was not rolled back.")
    mlflow_stability.autolog(disable=True)
    return count.steps[-1]


def _median(steps: list[Calls]) -> Calls:
    return sorted(steps, key=Counter.total)[len(steps) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=[*VARIANTS, "rolls back"], default=[*VARIANTS, "rolls back"])
    parser.add_argument("--files", help="list the files of this kind of step as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    os.chdir(tempfile.mkdtemp(prefix="step-calls-"))
    os.environ["MLFLOW_TRACKING_URI"] = f"file:{Path.cwd()}/mlruns"
    print(f"{'variant':<10}{'step':<12}{'calls':>7}{'functions':>11}{'files':>7}")
    for name in options.only:
        kinds = {name: step_that_rolls_back()} if name == "rolls back" else with_session(name, watched_steps)
        for kind, calls in kinds.items():
            total = calls.total() / (100 if kind == "mean" else 1)
            files = Counter[str]()
            for (file, _), number in calls.items():
                files[file] += number
            print(f"{'rollback' if kind == name else name:<10}{kind:<12}{total:>7.0f}{len(calls):>11}{len(files):>7}")
            if kind == options.files:
                for file, number in files.most_common():
                    print(f"{number:>8}  {file}")


if __name__ == "__main__":
    main()
