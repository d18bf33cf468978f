"""Failing trainings with other tools that act on them, beside this one.

`stabilityguard` replaces the optimizer's step; it is no torch optimizer, so the schedule keeps the optimizer itself.
Lightning's `SpikeDetection` gets the loss of each batch, ends the training and names two batches to leave out. What its
documentation asks of the user is done here: the training starts again without all batches named so far, until no spike
is left. A batch that is left out has no forward pass and no step; what the script sets at that step is set all the
same. A bit flip does not happen again in a training that starts again.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from benchmarks.peers.in_training import installed, stabilityguard
from benchmarks.rescue import MAX_RATIO_SAVED, all_results, ratio, trial_of, twin_of
from benchmarks.table import Cell, Table, table_of
from zoo.catalog import ZOO, failure_named
from zoo.trial import Result

from mlflow_stability.demo.training_loop import Batch, Failure, FailurePoints, Task

FAILURES = (
    "learning rate x30",
    "corrupted targets",
    "NaN inputs",
    "bit flip",
    "weight decay gone wrong",
    "GPT: bad batch",
    "GPT: NaN batch",
    "GPT: lr 1.0 at 200",
)
"""Batches, weights, and settings that change; all of them can be saved."""
HAPPENS_ONCE = ("bit flip",)
MAX_RESTARTS = 5


@dataclass(frozen=True, slots=True)
class PeerTrial:
    """A failure of the zoo with another tool."""

    failure: str
    seed: int
    tool: str


@dataclass(slots=True)
class PeerResult(Result):
    """What came of it."""

    left_out: int = 0
    """Batches that the training had to start again without."""


def run_peer(trial: PeerTrial, folder: Path) -> PeerResult:
    """Train in this process; files of the tool go into the folder."""
    folder.mkdir(parents=True)
    os.chdir(folder)
    torch.set_num_threads(1)
    began, failure = time.perf_counter(), failure_named(trial.failure)
    with contextlib.redirect_stdout(io.StringIO()):
        result = TOOLS[trial.tool](failure, trial.seed)
    result.seconds = time.perf_counter() - began
    return result


def guarded(action: str) -> Any:
    """Return a training with the optimizer guarded by stabilityguard."""

    def train(failure: Failure, seed: int) -> PeerResult:
        task, result = failure.task(seed), PeerResult()
        training = SimpleNamespace(model=task.model, optimizer=WithOwnStep(task.optimizer))
        stabilityguard(training, action)
        replace_step(task.optimizer, training.optimizer.step)
        failure.train_task(task, seed, ill=True, notes=result.notes)
        return result

    return train


def replace_step(optimizer: torch.optim.Optimizer, step: Callable[..., Any]) -> None:
    """Let an optimizer step otherwise; schedules ask for a method that is bound to the optimizer."""
    optimizer.step = MethodType(lambda _, *arguments, **named: step(*arguments, **named), optimizer)


class WithOwnStep:
    """An optimizer whose step is still its own after that of the object itself was replaced."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer, self.step = optimizer, optimizer.step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)


def spikes_left_out(failure: Failure, seed: int) -> PeerResult:
    """Train with SpikeDetection, and again without the batches it named."""
    from lightning.fabric.utilities.spike import TrainingSpikeException

    left_out: set[int] = set()
    for _ in range(MAX_RESTARTS + 1):
        result, task = PeerResult(), failure.task(seed)
        is_over = bool(left_out) and failure.name in HAPPENS_ONCE
        watched = SpikesWatched(FailurePoints() if is_over else failure.trouble, task, left_out)
        watched_failure = replace(failure, trouble=watched)
        try:
            watched_failure.train_task(watched.task, seed, ill=True, notes=result.notes)
        except TrainingSpikeException:
            left_out |= {step + 1 for step in watched.callback.bad_batches}  # batches count from 0, steps from 1
            result.error = f"stops at step {max(left_out)} every time"
        else:
            break
    result.left_out = len(left_out)
    return result


class SpikesWatched(FailurePoints):
    """A failure whose losses Lightning's callback gets, and some of whose batches are left out."""

    def __init__(self, trouble: FailurePoints, task: Task, left_out: Collection[int]) -> None:
        from lightning.fabric import Fabric
        from lightning.fabric.utilities.spike import SpikeDetection

        self.trouble, self.left_out, self.step = trouble, left_out, 0
        self.fabric, self.callback = Fabric(accelerator="cpu", devices=1), SpikeDetection()
        self.last_loss = torch.tensor(0.0)
        self.own_step, self.own_loss = task.optimizer.step, task.loss
        replace_step(task.optimizer, self.step_optimizer)
        self.task = replace(task, loss=self.loss_of_task)

    def step_optimizer(self, *arguments: Any, **named: Any) -> Any:
        return None if self.step in self.left_out else self.own_step(*arguments, **named)

    def loss_of_task(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        if self.step in self.left_out and model.training:
            return sum(parameter.sum() for parameter in model.parameters()) * 0.0  # type: ignore[return-value]
        return self.own_loss(model, batch)

    def before(self, step: int, task: Task) -> None:
        self.step = step
        self.trouble.before(step, task)

    def share_of_lr(self, step: int, share: float) -> float:
        return self.trouble.share_of_lr(step, share)

    def batch(self, step: int, batch: Batch) -> Batch:
        return self.trouble.batch(step, batch)

    def loss(self, step: int, loss: torch.Tensor) -> torch.Tensor:
        self.last_loss = loss if step in self.left_out else self.trouble.loss(step, loss)
        return self.last_loss

    def clears_gradients(self, step: int) -> bool:
        if step not in self.left_out:
            self.callback.on_train_batch_end(self.fabric, self.last_loss.detach(), None, step - 1)
        return step in self.left_out or self.trouble.clears_gradients(step)


GUARD, GUARD_BACK, SPIKES = "stabilityguard, skip", "stabilityguard, rollback", "Lightning SpikeDetection"
TOOLS = {GUARD: guarded("skip"), GUARD_BACK: guarded("rollback"), SPIKES: spikes_left_out}
NEEDS = {GUARD: "stabilityguard", GUARD_BACK: "stabilityguard", SPIKES: "lightning"}


def peers_rescue(
    seeds: int = 1, only: tuple[str, ...] = FAILURES, workers: int = 1, keep: Path | None = None
) -> Iterator[Table]:
    """Train failures bare, with this tool, and with others.

    Numbers are final losses in units of the healthy twin's, as in `rescue`: the worst of the seeds. With `keep`,
    results stay in a folder.
    """
    zoo = [failure for failure in ZOO if failure.name in only]
    own = {"bare": "bare", "`autolog(rollback=True)`": "rollback"}
    tools = [name for name in TOOLS if installed(NEEDS[name])]
    trials = [trial_of(entry.name, True, seed, mode) for entry in zoo for seed in range(seeds) for mode in own.values()]
    trials += [trial_of(name, False, seed, "bare") for name in twins(zoo) for seed in range(seeds)]
    results = all_results(list(dict.fromkeys(trials)), workers, keep)
    peer_trials = [PeerTrial(entry.name, seed, tool) for entry in zoo for seed in range(seeds) for tool in tools]
    results |= all_results(peer_trials, workers, keep, run_peer)
    columns = [*own, *TOOLS]
    rows: list[dict[str, Cell]] = []
    saved = dict.fromkeys(columns, 0)
    for failure in zoo:
        row: dict[str, Cell] = {"failure": failure.name}
        for column in columns:
            if column not in own and column not in tools:
                row[column] = "not installed"
                continue
            tried = [
                results[
                    trial_of(failure.name, True, seed, own[column])
                    if column in own
                    else PeerTrial(failure.name, seed, column)
                ]
                for seed in range(seeds)
            ]
            healthy = [results[trial_of(twin_of(failure, zoo).name, False, seed, "bare")] for seed in range(seeds)]
            ratios = list(map(ratio, tried, healthy))
            saved[column] += max(ratios) <= MAX_RATIO_SAVED
            row[column] = ending(max(ratios), tried)
        rows.append(row)
    rows.append(
        {"failure": f"within {MAX_RATIO_SAVED - 1:.0%}", **{name: f"{n} of {len(zoo)}" for name, n in saved.items()}}
    )
    yield table_of("Final loss in units of the healthy twin's", rows)


def ending(worst: float, tried: list[Result]) -> str:
    """Return the final loss, or how the training ended."""
    stop = next((item.error for item in tried if item.error), "")
    text = stop or ("lost" if worst == math.inf else f"{worst:.3f}")
    left_out = max(item.left_out if isinstance(item, PeerResult) else 0 for item in tried)
    return f"{text} ({left_out} batches left out)" if left_out else text


def twins(zoo: list[Failure]) -> list[str]:
    return list(dict.fromkeys(twin_of(failure, zoo).name for failure in zoo))
