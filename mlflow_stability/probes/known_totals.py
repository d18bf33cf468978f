"""Knows how many steps a training is to take, where something in the process says so.

In: optimizers. Out: who says so: a schedule that ends, or a trainer, each with how far it is and how far it goes.
Promised: one walk over Python's objects; a source counts only if its end is the training's beyond doubt. A warm-up that
ends is none, nor is a schedule that begins again.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim import lr_scheduler as schedules
from torch.optim.lr_scheduler import LRScheduler

from mlflow_stability.probes.roots import living
from mlflow_stability.probes.schedules import schedules_of

TRAINERS = (
    ("transformers.trainer_callback", "TrainerState"),
    ("lightning.pytorch.trainer.trainer", "Trainer"),
    ("pytorch_lightning.trainer.trainer", "Trainer"),
)
"""The classes of trainers that know their total, if they are loaded."""


@dataclass(frozen=True, slots=True)
class Course:
    """How far something is."""

    done: float
    total: float


@dataclass(frozen=True, slots=True)
class Source:
    """Somebody who may know the total."""

    is_trainer: bool
    """A trainer ends where it says; a schedule may be shorter than the training."""
    ask: Callable[[], Course | None]


def sources_of(optimizers: Sequence[Optimizer]) -> list[Source]:
    """Whoever may know the total."""
    kinds = [kind for module, name in TRAINERS if (kind := getattr(sys.modules.get(module), name, None)) is not None]
    *trainers, scheduled = living(*kinds, LRScheduler)
    found = [Source(True, partial(_of_trainer, weakref.ref(each))) for group in trainers for each in group]
    found += [Source(False, partial(_of_schedule, weakref.ref(each))) for each in schedules_of(scheduled, optimizers)]
    return found


def total_of(schedule: LRScheduler) -> int | None:
    """After how many of its own steps this schedule has run its whole course; None where it tells of no end."""
    parts = vars(schedule)
    if isinstance(schedule, schedules.OneCycleLR):
        return _whole(parts.get("total_steps"))
    if isinstance(schedule, schedules.CosineAnnealingLR):
        return _whole(parts.get("T_max"))
    if isinstance(schedule, schedules.PolynomialLR):
        return _whole(parts.get("total_iters"))
    if isinstance(schedule, schedules.LinearLR):
        falls = parts.get("end_factor", 1) < parts.get("start_factor", 0)
        return _whole(parts.get("total_iters")) if falls else None
    if isinstance(schedule, schedules.SequentialLR):
        inner, milestones = parts.get("_schedulers"), parts.get("_milestones")
        last = total_of(inner[-1]) if inner else None
        return last + milestones[-1] if last is not None and milestones else None
    if isinstance(schedule, schedules.LambdaLR):
        # The schedules of transformers are lambdas that were given the number of steps.
        given = {getattr(each, "keywords", {}).get("num_training_steps") for each in parts.get("lr_lambdas", ())}
        return _whole(given.pop()) if len(given) == 1 else None
    return None


def _of_schedule(reference: weakref.ref[Any]) -> Course | None:
    schedule = reference()
    total = None if schedule is None else total_of(schedule)
    return None if schedule is None or total is None else Course(schedule.last_epoch, total)


def _of_trainer(reference: weakref.ref[Any]) -> Course | None:
    """A Hugging Face trainer's state has both numbers; Lightning's trainer has the parts of its total."""
    trainer = reference()
    if trainer is None:
        return None
    if type(trainer).__name__ == "TrainerState":
        return _course(trainer.global_step, trainer.max_steps)
    if not trainer.training:
        return None
    totals = [trainer.max_steps] if (trainer.max_steps or -1) > 0 else []
    batches, epochs = trainer.num_training_batches, trainer.max_epochs or -1
    if epochs > 0 and isinstance(batches, int) and batches > 0 and trainer.lightning_module.automatic_optimization:
        totals.append(math.ceil(batches / trainer.accumulate_grad_batches) * epochs)
    return _course(trainer.global_step, min(totals, default=0))


def _course(done: Any, total: Any) -> Course | None:
    whole = _whole(total)
    return None if whole is None else Course(done, whole)


def _whole(number: Any) -> int | None:
    return number if isinstance(number, int) and number > 0 else None
