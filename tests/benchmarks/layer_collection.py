"""Runs the trainings that judgements are measured on, each in a process of its own, and keeps what was measured.

In: names of trainings, healthy and ill, and seeds. Out: for each the tables of its meter, kept in a folder so that
rules can be tried again without training again.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.healthy_oddities import HEALTHY
from benchmarks.ill_layers import ILL
from benchmarks.layer_meter import Meter, Table
from zoo.catalog import ZOO, failure_named

from mlflow_stability.demo.tasks import loop as zoo_loop
from mlflow_stability.demo.tasks.failure import Failure
from mlflow_stability.demo.tasks.loop import FailurePoints, Notes


@dataclass(frozen=True, slots=True)
class Subject:
    """One training to be measured."""

    name: str
    seed: int
    ill: bool = False


class Metered(FailurePoints):
    """Passes everything on, and tells the meter of the loss."""

    def __init__(self, inner: FailurePoints, meter: Meter) -> None:
        self.inner, self.meter = inner, meter

    def loss(self, step: int, loss: torch.Tensor) -> torch.Tensor:
        loss = self.inner.loss(step, loss)
        self.meter.loss(float(loss.detach()))
        return loss

    def __getattribute__(self, name: str) -> Any:
        own = ("inner", "meter", "loss")
        return object.__getattribute__(self, name) if name in own else getattr(self.inner, name)


def healthy_subjects(seeds: Sequence[int]) -> list[Subject]:
    """Our own and the healthy twins of the zoo."""
    twins = list({each.twin: each for each in reversed(ZOO)}.values())
    names = [*(each.__name__ for each in HEALTHY), *(each.name for each in twins)]
    return [Subject(name, seed) for name in names for seed in seeds]


def ill_subjects(seeds: Sequence[int]) -> list[Subject]:
    """Our own and the failures of the zoo."""
    names = [*(each.__name__ for each, _ in ILL), *(each.name for each in ZOO)]
    return [Subject(name, seed, ill=True) for name in names for seed in seeds]


def measured(subject: Subject) -> list[Table]:
    """Train it in this process."""
    torch.set_num_threads(1)
    meter = Meter()
    own: dict[str, Callable[[int, Meter], None]] = {
        each.__name__: each for each in (*HEALTHY, *(ill for ill, _ in ILL))
    }
    try:
        if subject.name in own:
            own[subject.name](subject.seed, meter)
        else:
            _zoo(failure_named(subject.name), subject, meter)
    finally:
        meter.stop()
    return list(meter.tables.values())


def _zoo(failure: Failure, subject: Subject, meter: Meter) -> None:
    clips = zoo_loop.clip_grad_norm_

    def watched(*args: Any) -> torch.Tensor:
        norm = clips(*args)
        meter.norm_before_clipping = float(norm)
        return norm

    zoo_loop.clip_grad_norm_ = watched
    task = failure.task(subject.seed)
    meter.watch(task.model)
    trouble = Metered(failure.trouble if subject.ill else FailurePoints(), meter)
    with suppress(ArithmeticError, ValueError, RuntimeError):  # some of them die of it
        zoo_loop.loop(task, trouble, subject.seed, Notes())


def collected(subjects: Sequence[Subject], folder: Path, workers: int) -> dict[Subject, list[Table]]:
    """The tables of all; those that are in the folder already are read from there."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [each for each in subjects if not _file(folder, each).exists()]
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        for subject, tables in zip(missing, pool.map(measured, missing), strict=True):
            _file(folder, subject).write_bytes(pickle.dumps(tables))
    return {each: pickle.loads(_file(folder, each).read_bytes()) for each in subjects}


def _file(folder: Path, subject: Subject) -> Path:
    name = "".join(each if each.isalnum() else "_" for each in subject.name)
    return folder / f"{name}-{subject.seed}{'-ill' if subject.ill else ''}.pickle"
