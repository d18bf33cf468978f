"""Follows cycles from hook to hook and gives out one reading for each.

In: what the hooks see, in their order: a backward pass, a clip, a scaler, a gate, the end of a step. Out: the reading
of each cycle, once, in order. Promised: nothing of the training is changed or waited for; what is measured is what
the optimizer was given.

A cycle ends when every optimizer has stepped that stepped in the cycles before it, or else with the next backward.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.cycle import Clip, Cycle
from mlflow_stability.probes.cycle_takes import UnscaledLoss, take_clip, take_limit, take_losses, take_rates, take_scale
from mlflow_stability.probes.engine_norms import EngineNorms, norm_before_clipping
from mlflow_stability.probes.gradient_norm import parameters_of, total_norm, whole_gradients_of
from mlflow_stability.probes.held_gradients import HeldGradients
from mlflow_stability.probes.optimizer_tracks import OptimizerTracks
from mlflow_stability.probes.probe import Guard
from mlflow_stability.probes.readback import Readback
from mlflow_stability.probes.reading import CycleReading, Skips, reading_of, rows_of, scalars_of
from mlflow_stability.probes.since_last_step import SinceLastStep
from mlflow_stability.probes.step_count import StepCount
from mlflow_stability.probes.step_order import StepOrder
from mlflow_stability.probes.survey import NoSurvey, Survey

OnReading = Callable[[Any, CycleReading], None]  # takes what `on_gate` gave at the gate, and the cycle's reading
SurveyFor = Callable[[Any], Survey | None]  # gives the probes of what `on_gate` gave


class CycleMeter:
    """The one who counts cycles and measures them."""

    def __init__(
        self,
        guard: Guard,
        on_gate: Callable[[Optimizer | None], Any],
        on_reading: OnReading,
        survey_for: SurveyFor = lambda _: None,
    ) -> None:
        self._on_gate, self._on_reading, self._survey_for = on_gate, on_reading, survey_for
        self._survey: Survey | NoSurvey = NoSurvey()
        self._swallowing = False
        self._since = SinceLastStep()
        self._readback, self._tracks, self._cycle = Readback(), OptimizerTracks(self._since.is_new), Cycle()
        self._last: Cycle | None = None
        self._owner: Any = None
        self._order, self._steps = StepOrder(), StepCount()
        self._losses_before = self._evaluating = 0
        self._evaluated = False
        """Whether the closure of this step was evaluated before: LBFGS asks again and again."""
        self._unscaled_loss: UnscaledLoss | None = None
        self._ended_at: float | None = None
        self._skips = Skips({})
        self._held, self._engines = HeldGradients(), EngineNorms()
        self._take_engine = guard("norm before clipping", self._engine_found)
        self._ask_engine = guard("norm before clipping", self._engine_asked)
        self._take_losses = guard("loss", take_losses)
        self._look_back = guard("discarded gradients", self._discarded)
        self._note_held = guard("discarded gradients", self._held.backward_ended)
        self._follow = guard("discarded gradients", self._held.at_gate)
        self._take_norm = guard("gradient norm", self._norm)
        self._take_learning_rates = guard("learning rate", take_rates)
        self._take_scale = guard("loss scale", take_scale)
        self._take_clip = guard("norm before clipping", take_clip)
        self._take_limit = guard("clipping", take_limit)

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """Runs when the script has made an optimizer."""
        self._since.optimizer_made(optimizer)

    def backward(self, tensors: Any) -> None:
        """Runs right before gradients are computed."""
        self._since.backward_began()
        if self._evaluating and self._evaluated:
            return
        if self._cycle.has_gate and not self._evaluating:
            self._end_cycle()
        self._look_back(self._cycle)
        self._cycle.micro_batches += 1
        self._losses_before = len(self._cycle.losses)
        self._cycle.clips.clear()  # what was clipped before more gradients came is not what the optimizer will get
        self._take_losses(self._cycle, tensors, self._unscaled_loss)
        self._cycle.condense()
        self._survey.backward_began()

    def backward_ended(self) -> None:
        """Runs right after gradients were computed, or failed to be."""
        self._since.backward_ended()
        self._note_held()
        self._survey.backward_ended()

    def backward_failed(self) -> None:
        """Runs when the backward pass ended in an exception: an interrupted notebook cell, say."""
        cycle, again = self._cycle, self._evaluating and self._evaluated
        if not cycle.has_gate and not again and cycle.micro_batches:
            cycle.micro_batches -= 1
            del cycle.losses[self._losses_before :]

    def zeroed(self, owner: Optimizer | Module) -> None:
        """Runs after an optimizer or a module set its gradients to zero."""
        cycle = self._cycle
        if cycle.micro_batches and not cycle.has_gate:
            cycle.discard(owner, parameters_of(owner))

    def clip(self, gradients: Sequence[Tensor], order: Any, norm: Tensor) -> None:
        """Runs after the script took a norm of gradients."""
        if not self._cycle.has_gate and not hasattr(norm, "full_tensor"):
            self._take_clip(self._cycle, gradients, order, norm)

    def clipped(self, kind: str, limit: Any) -> None:
        """Runs after the script clipped gradients."""
        if not self._cycle.has_gate:
            self._take_limit(self._cycle, kind, limit)

    def scaled(self, scaler: Any, original: Any, result: Any) -> None:
        """Runs after a loss scaler multiplied a loss."""
        if self._cycle.has_gate and not self._evaluating:
            self._end_cycle()
        self._cycle.scaler = scaler
        if isinstance(original, Tensor):
            self._unscaled_loss = (weakref.ref(result), original.detach().clone())

    def unscaled(self, scaler: Any) -> None:
        """Runs after a loss scaler divided gradients by its scale."""
        if self._cycle.scaler is scaler:
            self._cycle.unscaled = True

    def closure_begins(self, _optimizer: Optimizer, first: bool) -> None:
        """Runs before the closure of a step is evaluated."""
        self._evaluating = 1
        self._evaluated = not first
        if first and self._cycle.has_gate:
            self._end_cycle()

    def closure_ends(self, optimizer: Optimizer, first: bool, failed: bool) -> None:
        """Runs after it; the first evaluation is the gate."""
        self._evaluating = 0
        if first and not failed:
            self.gate(optimizer)

    def gate(self, optimizer: Optimizer) -> None:
        """Runs when the gradients are complete and not used yet."""
        if id(optimizer) in self._cycle.stepped or (self._cycle.has_gate and self._is_another(optimizer, self._cycle)):
            self._end_cycle()
        cycle = self._cycle
        if not cycle.has_gate:
            owner = self._on_gate(optimizer)
            if owner is self._owner and self._is_late(optimizer):
                return
            self._belongs_to(owner)
            cycle.drop_discarded(optimizer)
        is_first = not cycle.has_gate
        cycle.track = self._tracks.join(optimizer, cycle.track)
        if is_first:
            cycle.begins_step = self._steps.begins(cycle.track, self._since.is_new(optimizer))
        cycle.stepped.append(id(optimizer))
        self._take_scale(cycle, optimizer)
        self._follow(optimizer)
        self._take_engine(cycle, optimizer)
        unscale = getattr(optimizer, "grad_scale", None)
        self._take_norm(whole_gradients_of(optimizer), unscale)
        self._take_learning_rates(cycle, optimizer, self._tracks)
        place = self._tracks.track_place(cycle.track)
        self._survey.at_gate(optimizer, unscale, place, cycle.norms, cycle.limits, begins_step=cycle.begins_step)

    def swallowed(self, scaler: Any, optimizer: Optimizer) -> None:
        """Runs when a loss scaler was asked for a step and no optimizer was seen to make one."""
        self._swallowing = True
        try:
            self.gate(optimizer)
            found_inf = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
            self._cycle.found_inf.extend(flag.clone() for flag in found_inf.values())
            self.step_ended(optimizer)
        finally:
            self._swallowing = False

    def step_ended(self, optimizer: Optimizer) -> None:
        """Runs after a top-level step."""
        cycle = self._cycle
        self._since.step_ended()
        if not cycle.has_gate:
            return
        cycle.ended.add(id(optimizer))
        unscale, place = getattr(optimizer, "grad_scale", None), self._tracks.track_place(cycle.track)
        self._survey.after_step(optimizer, unscale, place, self._swallowing)
        if cycle.engine is None and self._is_complete:  # an engine can be asked only when its own step is over
            self._end_cycle()

    @property
    def _is_complete(self) -> bool:
        """Whether all optimizers have stepped that are expected to."""
        return self._order.is_complete(self._cycle.track, self._cycle.ended)

    def _engine_found(self, cycle: Cycle, optimizer: Optimizer) -> None:
        engine = self._engines.engine_of(optimizer)
        cycle.engine = cycle.engine if engine is None else engine
        cycle.copied = cycle.copied or (bool(cycle.micro_batches) and self._held.reaches(optimizer) is False)

    @staticmethod
    def _engine_asked(cycle: Cycle) -> None:
        norm = None if cycle.clips else norm_before_clipping(cycle.engine)
        if norm is not None:
            cycle.clips.append(Clip(norm, 2.0, frozenset(cycle.gradients), None))
        cycle.copied = cycle.copied or not cycle.clips

    def manual_step(self, loss: Any, gradients: Sequence[Tensor], optimizer: Optimizer | None) -> None:
        """A whole cycle at once, for a loop that no hook can see."""
        cycle = self._cycle
        self._belongs_to(self._on_gate(optimizer))
        cycle.track, cycle.micro_batches = 0, 1
        cycle.begins_step = self._steps.begins(0)
        if loss is not None:
            self._take_losses(cycle, torch.as_tensor(loss), None)
        self._take_norm(gradients, None)
        if optimizer is not None:
            self._tracks.join(optimizer, 0)
            self._take_learning_rates(cycle, optimizer, self._tracks)
            self._survey.at_gate(optimizer, None, "", cycle.norms)
        self._end_cycle()

    def forget(self) -> None:
        """One of these was ended half-way by Ctrl-C: what was being measured is let go of."""
        self._survey.forget()

    def drain(self) -> None:
        """Give out what is complete, and wait for what is on its way from the device."""
        if self._cycle.has_gate:
            self._end_cycle()
        self._readback.drain()

    def close(self) -> None:
        """Give out all there is, and leave the models alone."""
        self.drain()
        self._survey.close()

    def look_away(self) -> None:
        """Our hooks are taken off, for a while or for good."""
        self._survey.pass_over()

    def settle(self) -> None:
        """Wait for what is on its way: the one it belongs to is about to end."""
        self._readback.drain()

    def _discarded(self, cycle: Cycle) -> None:
        """What the script has discarded since the backward pass before, where this step had one."""
        if not cycle.micro_batches:
            self._held.step_begins()
            return
        left = self._held.left()
        if left.nothing:
            cycle.set_aside(len(cycle.losses), cycle.micro_batches)
            cycle.discards.clear()
        else:
            for optimizer in left.emptied:
                cycle.discard(optimizer, parameters_of(optimizer))
        if left.unsure:
            cycle.unsure = len(cycle.losses)

    def _belongs_to(self, owner: Any) -> None:
        """A new owner's tracks, skips and times begin afresh."""
        self._cycle.owner = owner
        if owner is not self._owner:
            self._owner, self._last, self._ended_at = owner, None, None
            self._skips = Skips({})
            self._tracks.begin_training()
            self._order.clear()
            self._steps.begin_training()
            self._survey.close()
            self._survey = self._survey_for(owner) or NoSurvey()

    def _is_another(self, optimizer: Optimizer, cycle: Cycle) -> bool:
        """Whether this step belongs to another training than that cycle, one that no backward pass has announced."""
        return self._tracks.track_of(optimizer) != cycle.track and self._since.anything_new(optimizer)

    def _is_late(self, optimizer: Optimizer) -> bool:
        """Whether this step still belongs to the cycle that seemed to be over."""
        cycle, last = self._cycle, self._last
        if cycle.micro_batches or last is None or id(optimizer) in last.stepped or self._is_another(optimizer, last):
            return False
        self._tracks.join(optimizer, last.track)
        last.stepped.append(id(optimizer))
        self._order.came_late(last.track, id(optimizer))
        return True

    def _end_cycle(self) -> None:
        cycle, self._cycle = self._cycle, Cycle()
        self._last = cycle
        if cycle.engine is not None:
            self._ask_engine(cycle)
            cycle.engine = None
        self._order.cycle_ended(cycle.track, cycle.stepped)
        ended, when = time.perf_counter(), time.time()
        step_time = None if self._ended_at is None else ended - self._ended_at
        self._ended_at = ended
        place, skips = self._tracks.track_place(cycle.track), self._skips
        cycle.blocks, cycle.tables = self._survey.end(cycle.begins_step)

        def read(values: Sequence[float], rows: Sequence[Sequence[float]]) -> None:
            self._on_reading(cycle.owner, reading_of(cycle, values, rows, place, step_time, when, skips))

        self._readback.fetch(scalars_of(cycle), read, rows_of(cycle))

    def _norm(self, gradients: Sequence[Tensor], grad_scale: Tensor | None) -> None:
        norm = total_norm(gradients)
        if norm is not None:
            self._cycle.norms.append(norm if grad_scale is None else norm / grad_scale)
            if self._cycle.clips:
                self._cycle.gradients.update(map(id, gradients))
