"""Time, throughput, memory and progress of a training, measured at its forward and backward passes and its steps.

Guarantees: `close` leaves every module as it was; a part that fails is switched off alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch.nn import Module

from mlflow_stability.probes.forward.forward_watch import ForwardObserver, ForwardWatch
from mlflow_stability.probes.performance.communication import Communication
from mlflow_stability.probes.performance.memory import Memory
from mlflow_stability.probes.performance.progress import Progress
from mlflow_stability.probes.performance.step_timing import EVERY_STEPS, MOST_MOMENTS, Mark, StepClock
from mlflow_stability.probes.performance.throughput import Throughput
from mlflow_stability.probes.probe import BaseProbe, Guard, Probe, StepView, next_multiple

_BACKWARD_BEGAN, _BACKWARD_ENDED = int(Mark.BACKWARD_BEGAN), int(Mark.BACKWARD_ENDED)
FIRST_STEPS = 20  # in which every optimizer is shown to the watch; later every tenth


class TrainingPace:
    def __init__(
        self,
        guard: Guard,
        own_seconds: Callable[[], float],
        tokens_per_step: float | None = None,
        observers: Sequence[ForwardObserver] = (),
        total_steps: int | None = None,
        total_tokens: int | None = None,
    ) -> None:
        # After the observers: a second pass comes before operations and seconds are counted.
        self.throughput = Throughput(tokens_per_step)
        self.looks: tuple[Callable[[Any], None], ...] = ()  # called with the tensors of each backward pass
        self.clock = StepClock(own_seconds)
        self._watch = ForwardWatch(guard, (*observers, self.throughput), self.clock.split)
        self._communication = Communication(guard, lambda: self.models)
        # Probes that are called before all others.
        self.before_others: tuple[Probe, ...] = (
            *(_OptimizerFinder(self._watch), self.throughput, self._communication),
            Memory(),
            Progress(total_steps=total_steps, total_tokens=total_tokens, tokens=lambda: self.throughput.all_tokens),
        )
        self.after_others: tuple[Probe, ...] = (self.clock,)  # probes that are called after all others
        self._split = self.clock.split
        self._unusual_backward: Callable[[], None] = guard(StepClock.part, self._end_what_is_open)
        self._by_device: Callable[[int], None] = guard(StepClock.part, self.clock.mark)
        # Called before each step after all else of ours: the optimizer's time begins.
        self.step_began: Callable[[], None] = guard(StepClock.part, partial(self.clock.mark, Mark.STEP_BEGAN))
        # Called right after each step, before all else of ours.
        self.step_ended: Callable[[], None] = guard(StepClock.part, partial(self.clock.mark, Mark.STEP_ENDED))
        # Called when recording pauses: counting ends in a pass that never ended.
        self.pass_over: Callable[[], None] = guard(Throughput.part, self.throughput.pass_over)

    @property
    def models(self) -> tuple[Module, ...]:
        return self._watch.models

    def close(self) -> None:
        self._watch.remove()
        self._communication.forget()
        self.throughput.pass_over()

    def backward_began(self, tensors: Any) -> None:
        for look in self.looks:
            look(tensors)
        watch, throughput = self._watch, self.throughput
        watch.in_backward = throughput.is_between = True
        if watch.opened or throughput.flops.is_counting:
            self._unusual_backward()
        for part, begin in watch.gradients_begin:
            try:
                if part not in watch.guard.off:
                    begin()
            except BaseException as error:
                watch.guard.contain(part, error)
        if self._split.also is None:
            self._split.moments.append((_BACKWARD_BEGAN, self._split.now()))
        else:  # an event of the device, which may fail
            self._by_device(_BACKWARD_BEGAN)

    def backward_ended(self) -> None:
        watch = self._watch
        watch.in_backward = False
        for part, end in watch.gradients_end:
            try:
                if part not in watch.guard.off:
                    end()
            except BaseException as error:
                watch.guard.contain(part, error)
        if self._split.also is None:
            self._split.moments.append((_BACKWARD_ENDED, self._split.now()))
        else:
            self._by_device(_BACKWARD_ENDED)
        if len(self._split.moments) >= MOST_MOMENTS:
            self._split.add_up()

    def _end_what_is_open(self) -> None:
        self._watch.backward_began()
        self.throughput.backward_began()


class _OptimizerFinder(BaseProbe):
    """Shows optimizers to the watch before their steps."""

    part = "forward passes"

    def __init__(self, watch: ForwardWatch) -> None:
        self._watch = watch
        self._steps = 0

    def due(self, step: int) -> bool:
        self._steps += 1
        return self._steps <= FIRST_STEPS or step % EVERY_STEPS == 0

    def next_due(self, step: int) -> int:
        return step + 1 if self._steps <= FIRST_STEPS else next_multiple(step, EVERY_STEPS)

    def before_step(self, view: StepView) -> None:
        self._watch.before_step(view.optimizer)
