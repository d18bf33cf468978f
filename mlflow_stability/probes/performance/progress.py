"""Progress and remaining time of a training, where the number of steps is known.

Guarantees: correct or absent; one scan over Python's objects. A source (a schedule that ends, a trainer) must count
along with the steps, be within its range, and agree with all others; a total that the user gave is the only source.
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

from mlflow_stability.probes.model_discovery import Kind, living, remembered, schedules_of
from mlflow_stability.probes.probe import Probe, StepView, next_multiple
from mlflow_stability.probes.step.readback import Block, signals_at
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals

SIGNALS = signals(
    SignalType(
        "progress",
        "share of the training that is done, 0 to 1, where a schedule or a trainer knows the number of steps",
        exported="llm_training_progress",
    ),
    SignalType("eta_seconds", "estimated time until the end", exported="llm_training_remaining_seconds", unit="s"),
    topic="throughput",
)

# The classes of trainers that know their total, if they are loaded.
TRAINERS = (
    ("transformers.trainer_callback", "TrainerState"),
    ("lightning.pytorch.trainer.trainer", "Trainer"),
    ("pytorch_lightning.trainer.trainer", "Trainer"),
)
# Attributes of schedules with their number of steps.
TOTALS = {
    schedules.OneCycleLR: "total_steps",
    schedules.CosineAnnealingLR: "T_max",
    schedules.PolynomialLR: "total_iters",
}
EVERY_STEPS = 10
SEARCH_REPORTS = (1, 10)  # sources are searched for at these reports: one may be made late
MAX_DISAGREEMENT = 0.01  # between the progress of two sources
MIN_PACE = 0.5  # steps of a source for each of ours: the half of a GAN takes one for two
QUANTITIES = ("progress", "eta_seconds")


@dataclass(frozen=True, slots=True)
class ProgressCount:
    done: float
    total: float


@dataclass(frozen=True, slots=True)
class _Answer:
    is_trainer: bool
    progress: float
    seconds: float  # remaining time
    last_step: int  # last step of the training


class _Source:
    """A schedule or trainer that may know the number of steps, and its earlier counts."""

    def __init__(self, ask: Callable[[], ProgressCount | None], is_trainer: bool = True) -> None:
        self._ask = ask
        self._is_trainer = is_trainer  # a trainer ends where it says; a schedule may be shorter than the training
        self._last: tuple[int, ProgressCount] | None = None  # step of the last question, and the answer
        self._first: tuple[float, float] | None = None  # count and time at which it began to count along
        self._pace = 0.0  # its own steps for each of ours
        self._when = 0.0

    def look(self, step: int, now: float) -> _Answer | None:
        """Return the answer before this step, or None if the source does not count along with the steps."""
        count = self._ask()
        if count is None or not self._counts_along(step, now, count) or self._first is None:
            return None
        per_step = max(1, round(self._pace))  # a source that counts for several processes counts several a step
        done = min(count.done + per_step, count.total)
        seconds = (now - self._first[1]) / (count.done - self._first[0]) * (count.total - done)
        ahead = math.ceil((count.total - done) / self._pace)
        return _Answer(self._is_trainer, done / count.total, seconds, step + ahead)

    def _counts_along(self, step: int, now: float, count: ProgressCount) -> bool:
        last, when = self._last, self._when
        if last is None or count.total != last[1].total or not last[1].done <= count.done <= count.total:
            self._first = None
        elif step - last[0] < EVERY_STEPS - 1:  # too few steps for a pace: some count every other step
            return self._first is not None
        else:
            self._pace = (count.done - last[1].done) / (step - last[0])
            if self._pace < MIN_PACE:
                self._first = None
            elif self._first is None:
                self._first = last[1].done, when
        self._last, self._when = (step, count), now
        return self._first is not None


def _sources_of(optimizers: Sequence[Optimizer]) -> list[_Source]:
    # Every schedule keeps in the groups the learning rate that it began with.
    may_have_schedule = any("initial_lr" in group for optimizer in optimizers for group in optimizer.param_groups)
    if not may_have_schedule and not any(module in sys.modules for module, _ in TRAINERS):
        return []
    kinds = [kind for module, name in TRAINERS if (kind := getattr(sys.modules.get(module), name, None)) is not None]
    *trainers, scheduled = living(*kinds, LRScheduler) if kinds else remembered(Kind.SCHEDULE)
    sources = [_Source(partial(_of_trainer, weakref.ref(trainer))) for group in trainers for trainer in group]
    schedules_here = schedules_of(scheduled, optimizers)
    return sources + [_Source(partial(_of_schedule, weakref.ref(schedule)), False) for schedule in schedules_here]


def total_of(schedule: LRScheduler) -> int | None:
    """Return the number of its own steps after which this schedule ends, or None if it says nothing of an end."""
    parts = vars(schedule)
    for kind, name in TOTALS.items():
        if isinstance(schedule, kind):
            return _whole(parts.get(name))
    if isinstance(schedule, schedules.LinearLR):
        falls = parts.get("end_factor", 1) < parts.get("start_factor", 0)
        return _whole(parts.get("total_iters")) if falls else None
    if isinstance(schedule, schedules.SequentialLR):
        inner, milestones = parts.get("_schedulers"), parts.get("_milestones")
        last = total_of(inner[-1]) if inner else None
        return last + milestones[-1] if last is not None and milestones else None
    if isinstance(schedule, schedules.LambdaLR):
        # The schedules of transformers are lambdas that were given the number of steps.
        given = {getattr(part, "keywords", {}).get("num_training_steps") for part in parts.get("lr_lambdas", ())}
        return _whole(given.pop()) if len(given) == 1 else None
    return None


def _of_schedule(reference: weakref.ref[Any]) -> ProgressCount | None:
    schedule = reference()
    total = None if schedule is None else total_of(schedule)
    return None if schedule is None or total is None else ProgressCount(schedule.last_epoch, total)


def _of_trainer(reference: weakref.ref[Any]) -> ProgressCount | None:
    trainer = reference()
    if trainer is None:
        return None
    if type(trainer).__name__ == "TrainerState":
        return _count(trainer.global_step, trainer.max_steps)
    if not trainer.training:
        return None
    totals = [trainer.max_steps] if (trainer.max_steps or -1) > 0 else []
    batches, epochs = trainer.num_training_batches, trainer.max_epochs or -1
    if epochs > 0 and isinstance(batches, int) and batches > 0 and trainer.lightning_module.automatic_optimization:
        totals.append(math.ceil(batches / trainer.accumulate_grad_batches) * epochs)
    return _count(trainer.global_step, min(totals, default=0))


def _count(done: Any, total: Any) -> ProgressCount | None:
    whole = _whole(total)
    return None if whole is None else ProgressCount(done, whole)


def _whole(number: Any) -> int | None:
    return number if isinstance(number, int) and number > 0 else None


class Progress(Probe):
    """Progress of one training; ``tokens`` returns how many it has processed."""

    part = "progress"

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        total_steps: int | None = None,
        total_tokens: int | None = None,
        tokens: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._now = now
        self._optimizers: MutableMapping[Optimizer, None] = WeakIdKeyDictionary()
        self._newest: Callable[[], Optimizer | None] = lambda: None  # usually the only one
        self._sources: list[_Source] = []
        if total_steps is not None:
            self._sources = [_Source(lambda: ProgressCount(self._asked_at - 1, total_steps))]
        elif total_tokens is not None:
            self._sources = [_Source(lambda: ProgressCount(tokens(), total_tokens))]
        self._is_given = bool(self._sources)  # the user has declared the end of the training
        self._reports = 0
        self._was_reported = False
        self._is_new = False  # sources were found just now: the next step is that from which they count
        self._asked_at = 0
        self._last_step = 0  # of the training; 0: unknown
        self._measured: tuple[float, float] | None = None

    def due(self, step: int) -> bool:
        return step % EVERY_STEPS == 0 or step == self._last_step or self._is_new

    def next_due(self, step: int) -> int:
        following = step + 1 if self._is_new else next_multiple(step, EVERY_STEPS)
        return min(following, self._last_step) if self._last_step > step else following

    def before_step(self, view: StepView) -> None:
        if self._newest() is not view.optimizer:
            self._optimizers[view.optimizer], self._newest = None, weakref.ref(view.optimizer)
        if view.step != self._asked_at:
            self._asked_at, self._is_new = view.step, False
            self._ask(view.step)

    def blocks(self, step: int) -> Sequence[Block]:
        if step % EVERY_STEPS == 0:
            self._reports += 1
            if self._reports in SEARCH_REPORTS and not (self._was_reported or self._is_given):
                self._sources = _sources_of(list(self._optimizers))
                self._is_new = bool(self._sources)
        measured, self._measured = self._measured, None
        if measured is None:
            return ()
        self._was_reported = True
        return [Block(signals_at(QUANTITIES, ""), measured)]

    def _ask(self, step: int) -> None:
        if not self._sources:
            return
        now = self._now()
        answers = [answer for source in self._sources if (answer := source.look(step, now)) is not None]
        if any(answer.is_trainer for answer in answers):
            answers = [answer for answer in answers if answer.is_trainer]
        progress = [answer.progress for answer in answers]
        if not progress or max(progress) - min(progress) > MAX_DISAGREEMENT:
            return
        self._last_step = max(answer.last_step for answer in answers)
        self._measured = answers[0].progress, answers[0].seconds
