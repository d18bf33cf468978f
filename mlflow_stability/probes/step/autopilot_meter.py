"""Follows captures and tells an autopilot of each place at which something can be done about them.

In: what the hooks see. Out: readings, as from any meter, and calls to the autopilot: before a step when all is
measured, around the end of a step, before a backward pass, at the end of a capture. Guarantees: the autopilot hears of
each place once, in order; it acts on what was measured and never changes what is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.objects.object_memory import ObjectMemory
from mlflow_stability.probes.probe import Guard
from mlflow_stability.probes.ranks.rank_watch import RankWatch
from mlflow_stability.probes.step.step_capture import StepCapture
from mlflow_stability.probes.step.step_meter import OnReading, SchedulerFor, StepMeter


class StepControl(Protocol):
    """Who acts. None of these may raise, unless the training is to end."""

    def before_backward(self, tensors: Any) -> None:
        """Runs before anything else of a backward pass."""

    def before_closure(self, optimizer: Optimizer) -> None:
        """Runs right before a step that was given a closure."""

    def closure_begins(self, optimizer: Optimizer) -> None:
        """Runs before each evaluation of a closure."""

    def evaluated_again(self, optimizer: Optimizer) -> None:
        """Runs after each further evaluation."""

    def before_step(
        self,
        optimizer: Optimizer,
        capture: StepCapture,
        place: str,
        norm: Tensor | None,
        companions: Sequence[Optimizer],
    ) -> None:
        """Runs when the gradients are complete and measured, and not used yet."""

    def swallowed(self, optimizer: Optimizer, capture: StepCapture, place: str) -> None:
        """Runs when a loss scaler threw a step away."""

    def step_ending(self, optimizer: Optimizer) -> bool:
        """Runs right after a step; whether it was skipped."""

    def step_over(self, capture_over: bool, is_whole: bool) -> None:
        """Runs after that, when all is as the script expects it. `is_whole`: no other training is expected in it."""

    def pause(self, begin: bool) -> None:
        """Runs when processes begin to make different numbers of steps, and when that is over."""

    def was_rolled_back(self) -> bool:
        """Whether it set the training back since this was asked last."""

    def capture_ended(self) -> None:
        """Runs before the reading of a capture is asked for."""


class AutopilotMeter(StepMeter):
    """A meter with an autopilot for each recording."""

    def __init__(
        self,
        guard: Guard,
        owner_for: Callable[[Optimizer | None], Any],
        on_reading: OnReading,
        control_for: Callable[[Any], StepControl | None],
        scheduler_for: SchedulerFor = lambda _: None,
        ranks: RankWatch | None = None,
        objects: ObjectMemory | None = None,
    ) -> None:
        super().__init__(guard, owner_for, on_reading, scheduler_for, ranks, objects)
        self._clipped_norm.is_on = False  # steps are skipped for what the gradients hold, however it came there
        self._waits_for_ranks = True  # what is learnt of a step must be learnt everywhere before the next one
        self._control_for = control_for
        self._control: StepControl | None = None
        self._norm_now: Tensor | None = None

    def backward(self, tensors: Any) -> None:
        """Runs right before gradients are computed."""
        if self._control is not None and not (self._evaluating and self._evaluated):
            self._control.before_backward(tensors)
        super().backward(tensors)

    def step_with_closure(self, optimizer: Optimizer) -> None:
        """Runs right before a step that was given a closure."""
        if self._control is not None:
            self._control.before_closure(optimizer)

    def closure_begins(self, optimizer: Optimizer, first: bool) -> None:
        """Runs before the closure of a step is evaluated."""
        if self._control is not None:
            self._control.closure_begins(optimizer)
        super().closure_begins(optimizer, first)

    def closure_ends(self, optimizer: Optimizer, first: bool, failed: bool) -> None:
        """Runs after it; the first evaluation completes the gradients."""
        super().closure_ends(optimizer, first, failed)
        if not first and not failed and self._control is not None:
            self._control.evaluated_again(optimizer)

    def uneven_inputs(self, begin: bool) -> None:
        """From now on some processes may run out of batches before others, or no more."""
        super().uneven_inputs(begin)
        if self._control is not None:
            self._control.pause(begin)

    def _before_step(self, optimizer: Optimizer) -> None:
        self._norm_now = None
        if self._control is not None and self._control.was_rolled_back():
            self._steps.begin_anew()
        super()._before_step(optimizer)
        capture = self.capture if id(optimizer) in self.capture.stepped else self._last
        if self._control is None or capture is None:
            return
        place = self._tracks.track_place(capture.track)
        if self._swallowing:
            self._control.swallowed(optimizer, capture, place)
        else:
            self._control.before_step(optimizer, capture, place, self._norm_now, self._tracks.together(capture.track))

    def step_ended(self, optimizer: Optimizer) -> None:
        """Runs after a top-level step."""
        if self._control is None:
            super().step_ended(optimizer)
            return
        was_swallowing = self._swallowing
        self._swallowing = self._control.step_ending(optimizer) or was_swallowing
        super().step_ended(optimizer)
        self._swallowing = was_swallowing
        capture = self.capture
        is_over = not capture.stepped or self._order.is_complete(capture.track, capture.ended)
        with self._scan:  # before a state is copied, what was made since may be looked for
            self._control.step_over(is_over, self._steps.is_whole)

    def _belongs_to(self, owner: Any) -> None:
        if owner is not self._owner or self._control is None:
            self._control = self._control_for(owner)
            if self._control is not None:
                self._control.pause(self._ranks.paused)
        super()._belongs_to(owner)
        self._owner_is_met = self._control is not None

    def _end_capture(self) -> None:
        if self._control is not None:
            self._control.capture_ended()
        super()._end_capture()

    def _take_norm(self, gradients: Sequence[Tensor], grad_scale: Tensor | None) -> None:
        before = len(self.capture.norms)
        super()._take_norm(gradients, grad_scale)
        last = self.capture.norms[-1] if len(self.capture.norms) > before else None
        self._norm_now = last if isinstance(last, Tensor) else None
