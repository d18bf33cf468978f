"""Call probes at the points of a capture when they are due; each is a part that can fail alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import Tensor
from torch.amp import GradScaler
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mlflow_stability.probes.forward.forward_passes import ForwardObserver, ForwardScheduler, ForwardWatch
from mlflow_stability.probes.model_discovery import ObjectMemory, ObjectScan
from mlflow_stability.probes.parameters.extreme_values import NonfiniteCount
from mlflow_stability.probes.parameters.layer_statistics import LayerStatistics, Table
from mlflow_stability.probes.parameters.layers import Layers
from mlflow_stability.probes.performance.memory import Memory
from mlflow_stability.probes.performance.progress import Progress
from mlflow_stability.probes.performance.step_timing import EVERY_STEPS, MOST_MOMENTS, Communication, Mark, StepClock
from mlflow_stability.probes.performance.throughput import Throughput
from mlflow_stability.probes.probe import ClipCounts, Guard, Probe, StepView, next_multiple
from mlflow_stability.probes.step.readback import Block, value_on_host

_STEP_BEGAN, _STEP_ENDED = int(Mark.STEP_BEGAN), int(Mark.STEP_ENDED)
_CAPTURE_ENDED = (int(Mark.CAPTURE_ENDED), 0.0)
NO_LIMITS: Mapping[str, float] = MappingProxyType({})
NO_CLIPS = ClipCounts()


@dataclass(frozen=True, slots=True)
class Probes:
    """The probes of a recording beside its pace."""

    by_step: Sequence[Probe] = ()  # probes by the steps of the recording
    by_own_step: Sequence[Probe] = ()  # probes by the steps of each training, of several side by side
    before_steps: Sequence[Callable[[], Any]] = ()  # run before the first step of each capture; these must not raise
    forward: ForwardScheduler | None = None  # probes inside forward passes
    spread: LayerStatistics | None = None  # distributions of gradients and weights in each layer
    nonfinite: NonfiniteCount = field(default_factory=NonfiniteCount)  # counts gradients where a norm is not finite
    broken: Any = None  # the session's `FirstBrokenStep`: inspects steps whose gradient norm is not finite


class ProbeScheduler:
    def __init__(
        self, guard: Guard, probes: Probes, pace: TrainingPace, first_step: int, objects: ObjectMemory | None = None
    ) -> None:
        self._guard = guard
        self.step = first_step - 1  # the newest step; the captures of a GAN's halves are of one step
        self.backward_began = pace.backward_began  # runs right before the backward pass of these tensors
        self.backward_ended = pace.backward_ended  # runs right after it
        self._leave = pace.close
        self._pass_over = pace.pass_over
        self._forward = probes.forward
        self._layers = Layers()
        self._walk = ObjectScan(Module, Optimizer, LRScheduler, GradScaler, memory=objects)
        self._before_steps = tuple(probes.before_steps)
        self._step_began, self._step_ended = pace.step_began, pace.step_ended
        self._split = pace.clock.split
        measured = (*probes.by_own_step, *([] if probes.spread is None else [probes.spread]))
        self._forward_probe = () if probes.forward is None else (_GuardedProbe(probes.forward, guard),)
        self._probes = (
            *(_GuardedProbe(probe, guard) for probe in (*pace.before_others, *probes.by_step)),
            *self._forward_probe,
            *(_GuardedProbe(probe, guard, by_own_step=True) for probe in measured),
            *(_GuardedProbe(probe, guard) for probe in pace.after_others),
        )
        self._scheduled = tuple([probe for probe in self._probes if probe not in self._forward_probe])
        self._due: list[_GuardedProbe] | None = None
        self._next_due = 0  # no probe is due before this step, except those inside forward passes
        self._asked: list[_GuardedProbe] = []  # the probes whose `due` was called in this capture
        self._own_steps: dict[str, int] = {}
        """By place, the number of captures of each training, of several side by side."""
        self._own_step = 0
        self._count = guard("non-finite gradients", probes.nonfinite.count)
        self._counted: list[Block] = []
        self._broken = probes.broken
        self._inspected = False  # whether the current step was inspected as broken
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
        clips: ClipCounts = NO_CLIPS,
        discarded: int = 0,
    ) -> None:
        """Runs before each optimizer step; the first begins a capture at this place of the model's signals."""
        if self._due is None:
            self._due = self._begin(place, begins_step)
        if self._due:
            alone = norms[0] if len(norms) == 1 else None  # of several, the last may be of another optimizer
            by_step = StepView(
                *(optimizer, self.step, self._layers, unscale, False, place, alone, limits, kept_for, clips, discarded)
            )
            by_own_step = by_step if self._own_step == self.step else by_step._replace(step=self._own_step)
            with self._walk.about(optimizer):
                for probe in self._due:
                    if probe.before_step is not None and probe.part not in self._guard.off:
                        try:
                            probe.before_step(by_own_step if probe.by_own_step else by_step)
                        except BaseException as error:
                            self._guard.contain(probe.part, error, probe.forget)
        if self._split.also is None:
            self._split.moments.append((_STEP_BEGAN, self._split.now()))
        else:  # the clock of a device may fail
            self._step_began()
        if norms:
            last = norms[-1]
            norm = last if isinstance(last, float) else value_on_host(last)
            if norm is not None and not math.isfinite(norm):
                counted = self._count(optimizer, self._layers, self.step)
                self._counted += [] if counted is None else [counted]
                if self._broken is not None:
                    self._inspected = True
                    self._broken.inspect_step(self.step, [optimizer])

    def after_step(self, optimizer: Optimizer, unscale: Tensor | None, place: str, skipped: bool) -> None:
        """Runs after each step; `skipped`: it is known to have been skipped."""
        if self._split.also is None:
            self._split.moments.append((_STEP_ENDED, self._split.now()))
        else:
            self._step_ended()
        if self._inspected and self._broken is not None:
            self._inspected = False
            if not skipped:
                self._broken.taken(self.step)
        if self._due:
            by_step = StepView(optimizer, self.step, self._layers, unscale, skipped, place)
            by_own_step = by_step if self._own_step == self.step else by_step._replace(step=self._own_step)
            for probe in reversed(self._due):  # the first before the step is the last after it
                if probe.after_step is not None and probe.part not in self._guard.off:
                    try:
                        probe.after_step(by_own_step if probe.by_own_step else by_step)
                    except BaseException as error:
                        self._guard.contain(probe.part, error, probe.forget)

    def end(self, begins_step: bool = True) -> tuple[list[Block], Sequence[Table]]:
        """End the capture; return its measurements."""
        due, self._due = self._due, None
        # Count a step that Ctrl-C interrupted before it began here.
        self.step += due is None and begins_step
        self._split.moments.append(_CAPTURE_ENDED)
        blocks, self._counted = self._counted, []
        tables: Sequence[Table] = ()
        for probe in due or ():
            if probe.blocks is not None and probe.part not in self._guard.off:
                try:
                    blocks += probe.blocks(self._own_step if probe.by_own_step else self.step)
                except BaseException as error:
                    self._guard.contain(probe.part, error, probe.forget)
        if due and self._spread is not None:
            tables = self._spread(self.step) or ()
        if self._asked:
            asked, self._asked = self._asked, []
            for probe in asked:
                probe.ask_at = probe.next_due(self._own_step if probe.by_own_step else self.step) or self.step + 1
            self._next_due = min([probe.ask_at for probe in self._scheduled])
        return blocks, tables

    def pass_over(self) -> None:
        """Pause measuring, and remove hooks of an unfinished forward pass."""
        self._pass_over()
        if self._forward is not None:
            self._forward.pass_over()

    def close(self) -> None:
        """Remove everything from the models."""
        self._leave()
        for probe in self._probes:
            if probe.close is not None:
                probe.close()
        if self._forward is not None:
            self._forward.finish()

    def forget(self) -> None:
        """Drop a capture that was interrupted half-way, such as by Ctrl-C."""
        self._walk.end()
        if self._due is not None:
            self._due = []
        self._counted, self._asked, self._inspected = [], [], False
        self.ask_again()
        for probe in self._probes:
            probe.forget()

    def ask_again(self) -> None:
        """Ask all probes at the next step whether they are due, for one that has just become so."""
        self._next_due = 0
        for probe in self._probes:
            probe.ask_at = 0

    def _begin(self, place: str, begins_step: bool) -> list[_GuardedProbe]:
        """Begin a capture; return the probes that are due."""
        step, own_steps = self.step + begins_step, self._own_steps
        if own_steps and place not in own_steps:
            for probe in self._probes:
                if probe.training_began is not None:
                    probe.training_began(step, place)
        own_step = own_steps.get(place, 0 if own_steps else self.step) + 1
        self.step, self._own_step, own_steps[place] = step, own_step, own_step
        for run in self._before_steps:
            run()
        if step >= self._next_due or len(own_steps) > 1:
            # `ask_at` is a step of the recording, which differs from the steps of a training beside others.
            alone = len(own_steps) == 1
            due: list[_GuardedProbe] = []
            self._asked = []
            for probe in self._probes:
                if alone and step < probe.ask_at:
                    continue
                if probe not in self._forward_probe:
                    self._asked.append(probe)
                if (alone and probe.is_periodic and probe.ask_at == step) or probe.due(
                    own_step if probe.by_own_step else step
                ):
                    due.append(probe)
            return due
        forward = self._forward
        if forward is None or not forward.busy:
            if forward is not None:
                forward.step, forward.capture = step + 1, forward.capture + 1
            return []
        return [probe for probe in self._forward_probe if probe.due(step)]


class NoProbes:
    """A scheduler where nothing is recorded: its other methods do nothing."""

    step = 0

    def end(self, _begins_step: bool = True) -> tuple[Sequence[Block], Sequence[Table]]:
        return (), ()

    def __getattr__(self, _method: str) -> Callable[..., None]:
        return _do_nothing


def _do_nothing(*_: Any) -> None: ...


class _GuardedProbe:
    """A probe whose errors do not reach the training."""

    def __init__(self, probe: Probe, guard: Guard, by_own_step: bool = False) -> None:
        self.by_own_step = by_own_step  # whether it goes by the steps of each training
        self.part = probe.part
        self.forget = probe.forget
        self.due: Callable[[int], bool | None] = guard(probe.part, probe.due)
        self.is_periodic = probe.is_periodic
        self.next_due: Callable[[int], int | None] = (
            probe.next_due if self.is_periodic else guard(probe.part, probe.next_due)  # arithmetic does not fail
        )
        self.ask_at = 0  # it is not due before this step
        # What these raise is contained where they are called.
        self.before_step: Callable[[StepView], Any] | None = _own(probe, "before_step")
        self.after_step: Callable[[StepView], Any] | None = _own(probe, "after_step")
        self.blocks: Callable[[int], Sequence[Block]] | None = _own(probe, "blocks")
        close, began = _own(probe, "close"), _own(probe, "training_began")
        self.training_began: Callable[[int, str], Any] | None = None if began is None else guard(probe.part, began)
        self.close: Callable[[], Any] | None = None if close is None else guard(probe.part, close)


def _own(probe: Probe, name: str) -> Callable[..., Any] | None:
    """A method of a probe, or None where it does not override it."""
    body: Callable[..., Any] = getattr(probe, name)
    return None if getattr(body, "__func__", None) is getattr(Probe, name) else body


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
        self.looks: tuple[Probe, ...] = ()  # called with the tensors of each backward pass
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
        watch, throughput = self._watch, self.throughput
        for probe in self.looks:
            try:
                if probe.part not in watch.guard.off:
                    probe.at_loss(tensors)
            except BaseException as error:
                watch.guard.contain(probe.part, error, probe.forget)
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


class _OptimizerFinder(Probe):
    """Shows optimizers to the watch before their steps."""

    part = "forward passes"

    def __init__(self, watch: ForwardWatch) -> None:
        self._watch = watch
        self._steps = 0

    def training_began(self, _step: int, _place: str) -> None:
        self._steps = 0

    def due(self, step: int) -> bool:
        self._steps += 1
        return self._steps <= FIRST_STEPS or step % EVERY_STEPS == 0

    def next_due(self, step: int) -> int:
        return step + 1 if self._steps <= FIRST_STEPS else next_multiple(step, EVERY_STEPS)

    def before_step(self, view: StepView) -> None:
        self._watch.before_step(view.optimizer)
