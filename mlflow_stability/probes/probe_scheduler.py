"""Calls the probes at the places of a capture, each when it is due and each as a part that can fail alone.

In: beginnings and ends of steps, from the meter. Out: what the probes measured, when the capture is over. Guarantees:
no probe is asked before the step at which, as it said itself, it may be due next; processes that do not record have no
probes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from torch import Tensor
from torch.amp import GradScaler
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.forward.forward_scheduler import ForwardScheduler
from mlflow_stability.probes.objects.model_discovery import ObjectScan
from mlflow_stability.probes.objects.object_memory import ObjectMemory
from mlflow_stability.probes.parameters.layer_statistics import LayerStatistics, Table
from mlflow_stability.probes.parameters.layers import Layers
from mlflow_stability.probes.parameters.nonfinite_count import NonfiniteCount
from mlflow_stability.probes.performance.step_timing import Mark
from mlflow_stability.probes.performance.training_pace import TrainingPace
from mlflow_stability.probes.probe import BaseProbe, Forgetful, Guard, Probe, StepView
from mlflow_stability.probes.step.readback import value_on_host

_STEP_BEGAN, _STEP_ENDED = int(Mark.STEP_BEGAN), int(Mark.STEP_ENDED)
_CAPTURE_ENDED = (int(Mark.CAPTURE_ENDED), 0.0)
NO_LIMITS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Probes:
    """What is to be measured beside the pace."""

    by_step: Sequence[Probe] = ()
    """Those that go by the steps of the recording."""
    by_own_step: Sequence[Probe] = ()
    """Those that go by the steps of each training, of several side by side."""
    before_steps: Sequence[Callable[[], Any]] = ()
    """What runs before the first step of each capture; it cannot fail."""
    forward: ForwardScheduler | None = None
    """Those that look into forward passes."""
    spread: LayerStatistics | None = None
    """How gradients and weights are spread in each layer."""
    nonfinite: NonfiniteCount = field(default_factory=NonfiniteCount)
    """Asked where a norm is not finite."""
    broken: BrokenSteps | None = None
    """Likewise, before the step is taken."""


class BrokenSteps(Protocol):
    """Who looks at steps that are broken."""

    def inspect_step(self, step: int, optimizers: Sequence[Optimizer]) -> None:
        """Runs before a step whose gradient norm is known not to be finite."""

    def taken(self, step: int) -> None:
        """Runs once that step was taken all the same."""


class ProbeScheduler:
    """The probes of one recording."""

    def __init__(
        self,
        guard: Guard,
        probes: Probes,
        pace: TrainingPace,
        first_step: int,
        objects: ObjectMemory | None = None,
    ) -> None:
        self._guard = guard
        self.step = first_step - 1
        """The newest step; the captures of a GAN's halves are of one step."""
        self.backward_began = pace.backward_began
        """Runs right before the backward pass of these tensors."""
        self.backward_ended = pace.backward_ended
        """Runs right after it."""
        self._leave = pace.close
        self._pass_over = pace.pass_over
        self._forward = probes.forward
        self._layers = Layers()
        self._walk = ObjectScan(Module, LRScheduler, GradScaler, memory=objects)
        self._before_steps = tuple(probes.before_steps)
        self._step_began, self._step_ended = pace.step_began, pace.step_ended
        self._split = pace.clock.split
        measured = (*probes.by_own_step, *([] if probes.spread is None else [probes.spread]))
        self._forward_probe = () if probes.forward is None else (_GuardedProbe(probes.forward, guard),)
        self._probes = (
            *(_GuardedProbe(each, guard) for each in (*pace.before_others, *probes.by_step)),
            *self._forward_probe,
            *(_GuardedProbe(each, guard, by_own_step=True) for each in measured),
            *(_GuardedProbe(each, guard) for each in pace.after_others),
        )
        self._scheduled = tuple([each for each in self._probes if each not in self._forward_probe])
        self._due: list[_GuardedProbe] | None = None
        self._next_due = 0
        """Before this step none of the probes is due, but for those that look into forward passes."""
        self._asked: list[_GuardedProbe] = []
        """The probes that were asked in this capture."""
        self._own_steps: dict[str, int] = {}
        """How many captures each training had, of several side by side."""
        self._own_step = 0
        self._count = guard("non-finite gradients", probes.nonfinite.count)
        self._counted: list[Block] = []
        self._broken = probes.broken
        self._looked_at = False
        """Whether the step that is being taken was seen to be broken."""
        self._spread = None if probes.spread is None else guard(probes.spread.part, probes.spread.tables)

    def before_step(
        self,
        optimizer: Optimizer,
        unscale: Tensor | None,
        place: str,
        norms: Sequence[Tensor | float],
        limits: Mapping[str, float] = NO_LIMITS,
        begins_step: bool = True,
        kept_for: int = 0,
    ) -> None:
        """Runs before each optimizer step; the first begins a capture. `place`: where signals of the model belong."""
        if self._due is None:
            self._due = self._begin(place, begins_step)
        if self._due:
            alone = norms[0] if len(norms) == 1 else None  # of several, the last may be of another optimizer
            by_step = StepView(
                optimizer, self.step, self._layers, unscale, False, place, norm=alone, limits=limits, kept_for=kept_for
            )
            by_own_step = by_step if self._own_step == self.step else by_step._replace(step=self._own_step)
            with self._walk.about(optimizer):
                for each in self._due:
                    if each.before_step is not None and each.part not in self._guard.off:
                        try:
                            each.before_step(by_own_step if each.by_own_step else by_step)
                        except BaseException as error:
                            self._guard.contain(each.part, error, each.forget)
        if self._split.also is None:
            self._split.moments.append((_STEP_BEGAN, self._split.now()))
        else:  # by a device's clock, which may fail
            self._step_began()
        if norms:
            last = norms[-1]
            norm = last if isinstance(last, float) else value_on_host(last)
            if norm is not None and not math.isfinite(norm):
                counted = self._count(optimizer, self._layers, self.step)
                self._counted += [] if counted is None else [counted]
                if self._broken is not None:
                    self._looked_at = True
                    self._broken.inspect_step(self.step, [optimizer])

    def after_step(self, optimizer: Optimizer, unscale: Tensor | None, place: str, skipped: bool) -> None:
        """Runs after each step; `skipped`: it is known not to have been taken."""
        if self._split.also is None:
            self._split.moments.append((_STEP_ENDED, self._split.now()))
        else:
            self._step_ended()
        if self._looked_at and self._broken is not None:
            self._looked_at = False
            if not skipped:
                self._broken.taken(self.step)
        if self._due:
            by_step = StepView(optimizer, self.step, self._layers, unscale, skipped, place)
            by_own_step = by_step if self._own_step == self.step else by_step._replace(step=self._own_step)
            for each in reversed(self._due):  # as with brackets: who was first before the step is last after it
                if each.after_step is not None and each.part not in self._guard.off:
                    try:
                        each.after_step(by_own_step if each.by_own_step else by_step)
                    except BaseException as error:
                        self._guard.contain(each.part, error, each.forget)

    def end(self, begins_step: bool = True) -> tuple[list[Block], Sequence[Table]]:
        """The capture is over."""
        due, self._due = self._due, None
        # It is a step as others are, where Ctrl-C has come before it was seen here.
        self.step += due is None and begins_step
        self._split.moments.append(_CAPTURE_ENDED)
        found, self._counted = self._counted, []
        tables: Sequence[Table] = ()
        for each in due or ():
            if each.blocks is not None and each.part not in self._guard.off:
                try:
                    found += each.blocks(self._own_step if each.by_own_step else self.step)
                except BaseException as error:
                    self._guard.contain(each.part, error, each.forget)
        if due and self._spread is not None:
            tables = self._spread(self.step) or ()
        if self._asked:
            asked, self._asked = self._asked, []
            for each in asked:
                each.ask_at = each.next_due(self._own_step if each.by_own_step else self.step) or self.step + 1
            self._next_due = min([each.ask_at for each in self._scheduled])
        return found, tables

    def pass_over(self) -> None:
        """We look away for a while: of a pass that never ended nothing of ours is left."""
        self._pass_over()
        if self._forward is not None:
            self._forward.pass_over()

    def close(self) -> None:
        """Leave the models alone."""
        self._leave()
        for each in self._probes:
            if each.close is not None:
                each.close()
        if self._forward is not None:
            self._forward.finish()

    def forget(self) -> None:
        """The capture was interrupted half-way, by Ctrl-C say: nothing more is told of it."""
        self._walk.end()
        if self._due is not None:
            self._due = []
        self._counted, self._asked, self._looked_at = [], [], False
        self._next_due = 0
        for each in self._probes:
            each.ask_at = 0
            each.forget()

    def _begin(self, place: str, begins_step: bool) -> list[_GuardedProbe]:
        """A capture of this training begins: a critic with five captures for one of its generator is in every step."""
        step, own_steps = self.step + begins_step, self._own_steps
        own_step = own_steps.get(place, 0 if own_steps else self.step) + 1
        self.step, self._own_step, own_steps[place] = step, own_step, own_step
        for run in self._before_steps:
            run()
        if step >= self._next_due or len(own_steps) > 1:
            # Steps of a training beside others are not those of the recording, by which probes were told to be asked.
            alone = len(own_steps) == 1
            due: list[_GuardedProbe] = []
            self._asked = []
            for each in self._probes:
                if alone and step < each.ask_at:
                    continue
                if each not in self._forward_probe:
                    self._asked.append(each)
                if (alone and each.is_periodic and each.ask_at == step) or each.due(
                    own_step if each.by_own_step else step
                ):
                    due.append(each)
            return due
        forward = self._forward
        if forward is None or not forward.busy:
            if forward is not None:
                forward.step, forward.capture = step + 1, forward.capture + 1
            return []
        return [each for each in self._forward_probe if each.due(step)]


class NoProbes:
    """Nothing is measured."""

    step = 0

    def backward_began(self, tensors: Any) -> None:
        """Nothing to do."""

    def backward_ended(self) -> None:
        """Nothing to do."""

    def before_step(
        self,
        optimizer: Optimizer,
        unscale: Tensor | None,
        place: str,
        norms: Sequence[Tensor | float],
        limits: Mapping[str, float] = NO_LIMITS,
        begins_step: bool = True,
        kept_for: int = 0,
    ) -> None:
        """Nothing to do."""

    def after_step(self, optimizer: Optimizer, unscale: Tensor | None, place: str, skipped: bool) -> None:
        """Nothing to do."""

    def end(self, _begins_step: bool = True) -> tuple[Sequence[Block], Sequence[Table]]:
        """Nothing was measured."""
        return (), ()

    def pass_over(self) -> None:
        """Nothing to do."""

    def forget(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


class _GuardedProbe:
    """A probe, made harmless."""

    def __init__(self, probe: Probe, guard: Guard, by_own_step: bool = False) -> None:
        self.by_own_step = by_own_step
        """Whether it counts the captures of each training for itself."""
        self.part = probe.part
        self.forget = probe.forget if isinstance(probe, Forgetful) else _nothing_held
        self.due: Callable[[int], bool | None] = guard(probe.part, probe.due)
        self.is_periodic = isinstance(probe, BaseProbe) and probe.is_periodic
        self.next_due: Callable[[int], int | None] = (
            probe.next_due if self.is_periodic else guard(probe.part, probe.next_due)  # arithmetic cannot fail
        )
        self.ask_at = 0
        """Before this step it is not due."""
        # What these raise is contained where they are called.
        self.before_step: Callable[[StepView], Any] | None = _own(probe, "before_step")
        self.after_step: Callable[[StepView], Any] | None = _own(probe, "after_step")
        self.blocks: Callable[[int], Sequence[Block]] | None = _own(probe, "blocks")
        close = _own(probe, "close") if isinstance(probe, BaseProbe) else None
        self.close: Callable[[], Any] | None = None if close is None else guard(probe.part, close)


def _own(probe: Probe, name: str) -> Callable[..., Any] | None:
    """What a probe does there; None where it does nothing."""
    body: Callable[..., Any] = getattr(probe, name)
    return None if getattr(body, "__func__", None) is getattr(BaseProbe, name) else body


def _nothing_held() -> None:
    """Of a probe that has nothing to forget."""
