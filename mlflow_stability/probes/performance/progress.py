"""Progress and remaining time of a training, where the number of steps is known.

In: optimizers before their steps. Out: every ten steps, and at the last one, ``progress`` from 0 to 1 and
``eta_seconds`` at the pace so far. Guarantees: correct or absent; one scan over Python's objects. A source (a
schedule that ends, a trainer) must count along with the steps, be within its range, and agree with all others. A
warm-up, a schedule that restarts and one stepped once an epoch are ignored. A total that the user gave is the only
source.

Sources are asked before a step, because then all of them count only earlier steps; this step is added.
"""

from __future__ import annotations

import math
import sys
import time
import weakref
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim import lr_scheduler as schedules
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.weak import WeakIdKeyDictionary

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.objects.model_discovery import living, remembered, schedules_of
from mlflow_stability.probes.objects.object_memory import Kind
from mlflow_stability.probes.parameters.layer_layout import whole_signals
from mlflow_stability.probes.probe import BaseProbe, StepView, next_multiple
from mlflow_stability.vocabulary.measured import SignalType

SIGNALS = (
    SignalType(
        "progress",
        "share of the training that is done, 0 to 1, where a schedule or a trainer knows the number of steps",
        "throughput",
        exported="llm_training_progress",
    ),
    SignalType(
        "eta_seconds", "estimated time until the end", "throughput", exported="llm_training_remaining_seconds", unit="s"
    ),
)

TRAINERS = (
    ("transformers.trainer_callback", "TrainerState"),
    ("lightning.pytorch.trainer.trainer", "Trainer"),
    ("pytorch_lightning.trainer.trainer", "Trainer"),
)
"""The classes of trainers that know their total, if they are loaded."""


@dataclass(frozen=True, slots=True)
class ProgressCount:
    """How far something is."""

    done: float
    total: float


@dataclass(frozen=True, slots=True)
class Source:
    """Somebody who may know the total."""

    is_trainer: bool
    """A trainer ends where it says; a schedule may be shorter than the training."""
    ask: Callable[[], ProgressCount | None]


def sources_of(optimizers: Sequence[Optimizer]) -> list[Source]:
    """Whoever may know the total."""
    if not any(module in sys.modules for module, _ in TRAINERS) and not any(map(_may_have_schedule, optimizers)):
        return []
    kinds = [kind for module, name in TRAINERS if (kind := getattr(sys.modules.get(module), name, None)) is not None]
    *trainers, scheduled = living(*kinds, LRScheduler) if kinds else remembered(Kind.SCHEDULE)
    found = [Source(True, partial(_of_trainer, weakref.ref(each))) for group in trainers for each in group]
    found += [Source(False, partial(_of_schedule, weakref.ref(each))) for each in schedules_of(scheduled, optimizers)]
    return found


def _may_have_schedule(optimizer: Optimizer) -> bool:
    """Whether a schedule was made for it: each keeps in the groups the learning rate that it began with."""
    return any("initial_lr" in group for group in optimizer.param_groups)


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


def _of_schedule(reference: weakref.ref[Any]) -> ProgressCount | None:
    schedule = reference()
    total = None if schedule is None else total_of(schedule)
    return None if schedule is None or total is None else ProgressCount(schedule.last_epoch, total)


def _of_trainer(reference: weakref.ref[Any]) -> ProgressCount | None:
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


def _course(done: Any, total: Any) -> ProgressCount | None:
    whole = _whole(total)
    return None if whole is None else ProgressCount(done, whole)


def _whole(number: Any) -> int | None:
    return number if isinstance(number, int) and number > 0 else None


EVERY = 10
SEARCHED_AT = (1, 10)
"""At which reports sources are looked for, as long as none was of use: one may be made late."""
AGREE = 0.01
"""How far sources may be apart in what is left."""
SLOWEST = 0.5
"""How many of its own steps a source must take for each of ours: the half of a GAN takes one for two."""
QUANTITIES = tuple(each.quantity for each in SIGNALS)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a source says of the step at hand."""

    is_trainer: bool
    progress: float
    seconds: float
    """How long the rest takes."""
    last_step: int
    """The step that will be the last."""


class Progress(BaseProbe):
    """How far one training is."""

    part = "progress"

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        total_steps: int | None = None,
        total_tokens: int | None = None,
        tokens: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``tokens``: how many were trained on so far."""
        self._now = now
        self._optimizers: MutableMapping[Optimizer, None] = WeakIdKeyDictionary()
        self._newest: Callable[[], Optimizer | None] = lambda: None
        """The one that came last: as a rule there is no other."""
        self._followed: list[_FollowedSource] = []
        if total_steps is not None:
            self._followed = [_FollowedSource(Source(True, lambda: ProgressCount(self._asked_at - 1, total_steps)))]
        elif total_tokens is not None:
            self._followed = [_FollowedSource(Source(True, lambda: ProgressCount(tokens(), total_tokens)))]
        self._is_given = bool(self._followed)
        """Whether the user said when the training ends."""
        self._reports = 0
        self._was_told = False
        self._is_new = False
        """Whether sources were found just now: they are asked at the next step from where they count."""
        self._asked_at = 0
        self._last_step = 0
        """The last step of the training, as far as it is known."""
        self._told: tuple[float, float] | None = None

    def due(self, step: int) -> bool:
        """Every ten steps, at the last one, and at the one after sources were looked for."""
        return step % EVERY == 0 or step == self._last_step or self._is_new

    def next_due(self, step: int) -> int:
        """The next step that may be due."""
        following = step + 1 if self._is_new else next_multiple(step, EVERY)
        return min(following, self._last_step) if self._last_step > step else following

    def before_step(self, view: StepView) -> None:
        """Runs when gradients are complete: the first of a step's optimizers is when sources are asked."""
        if self._newest() is not view.optimizer:
            self._optimizers[view.optimizer], self._newest = None, weakref.ref(view.optimizer)
        if view.step != self._asked_at:
            self._asked_at, self._is_new = view.step, False
            self._ask(view.step)

    def blocks(self, step: int) -> Sequence[Block]:
        """How far it is."""
        if step % EVERY == 0:
            self._reports += 1
            if self._reports in SEARCHED_AT and not (self._was_told or self._is_given):
                self._followed = [_FollowedSource(each) for each in sources_of(list(self._optimizers))]
                self._is_new = bool(self._followed)
        told, self._told = self._told, None
        if told is None:
            return ()
        self._was_told = True
        return [Block(whole_signals(QUANTITIES, ""), told)]

    def _ask(self, step: int) -> None:
        if not self._followed:
            return
        now = self._now()
        found = [answer for each in self._followed if (answer := each.look(step, now)) is not None]
        trainers = any(each.is_trainer for each in found)
        answers = [each for each in found if each.is_trainer is trainers]
        told = [each.progress for each in answers]
        if not told or max(told) - min(told) > AGREE:
            return
        self._last_step = max(each.last_step for each in answers)
        self._told = answers[0].progress, answers[0].seconds


class _FollowedSource:
    """A source, and what it said before."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._last: tuple[int, ProgressCount] | None = None
        """At which step it was asked before, and what it said."""
        self._first: tuple[float, float] | None = None
        """How far it was, and when, as it began to count along; None: it does not."""
        self._pace = 0.0
        """How many of its own steps it takes for each of ours."""
        self._when = 0.0

    def look(self, step: int, now: float) -> _Answer | None:
        """What it says before this step; None where it does not count along with the steps."""
        course = self._source.ask()
        if course is None or not self._counts_along(step, now, course) or self._first is None:
            return None
        per_step = max(1, round(self._pace))  # one that counts for each of several processes counts so many a step
        done = min(course.done + per_step, course.total)
        seconds = (now - self._first[1]) / (course.done - self._first[0]) * (course.total - done)
        ahead = math.ceil((course.total - done) / self._pace)
        return _Answer(self._source.is_trainer, done / course.total, seconds, step + ahead)

    def _counts_along(self, step: int, now: float, course: ProgressCount) -> bool:
        """Whether it does; its pace is taken anew where enough steps lie between, for some count every other step."""
        last, when = self._last, self._when
        if last is None or course.total != last[1].total or not last[1].done <= course.done <= course.total:
            self._first = None
        elif step - last[0] < EVERY - 1:
            return self._first is not None
        else:
            self._pace = (course.done - last[1].done) / (step - last[0])
            if self._pace < SLOWEST:
                self._first = None
            elif self._first is None:
                self._first = last[1].done, when
        self._last, self._when = (step, course), now
        return self._first is not None
