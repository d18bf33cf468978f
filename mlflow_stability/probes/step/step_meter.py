"""Follows cycles from hook to hook and gives out one reading for each.

In: what the hooks see, in their order: a backward pass, a clip, a scaler, a gate, the end of a step. Out: the reading
of each cycle, once, in order. Promised: nothing of the training is changed or waited for; what is measured is what
the optimizer was given.

A cycle ends when every optimizer has stepped that stepped in the cycles before it, or else with the next backward.

Remembers which optimizers stepped in the last cycles, to know when all of a cycle have.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.probe import Guard
from mlflow_stability.probes.probe_scheduler import NoSurvey, Survey
from mlflow_stability.probes.step.engine_norms import EngineNorms, norm_before_clipping
from mlflow_stability.probes.step.held_gradients import HeldGradients, SinceLastStep
from mlflow_stability.probes.step.optimizer_tracks import OptimizerTracks
from mlflow_stability.probes.step.readback import Readback
from mlflow_stability.probes.step.reading import CycleReading, Skips, reading_of, rows_of, scalars_of
from mlflow_stability.probes.step.step_capture import (
    MOST_LOSSES,
    Clip,
    Cycle,
    KnownOptimizer,
    UnscaledLoss,
    take_clip,
    take_limit,
    take_losses,
    take_rates,
    take_scale,
)
from mlflow_stability.probes.step.step_count import StepCount
from mlflow_stability.probes.tensors.gradient_norm import parameters_of, total_norm, whole_gradients_of

REMEMBERED_CYCLES = 16
"""One that did not step for so long is not waited for."""


class StepOrder:
    """The optimizers of each track, by identity."""

    def __init__(self) -> None:
        self._cycles_ended = 0
        self._last_stepped: dict[int, dict[int, int]] = {}
        """For each track, in which cycle each optimizer stepped last."""

    def is_complete(self, track: int, ended: set[int]) -> bool:
        """Whether every optimizer has ended its step that stepped in the cycles before this one."""
        stepped = self._last_stepped.get(track)
        if stepped is None:
            return False
        recent = self._cycles_ended - REMEMBERED_CYCLES
        for each, when in stepped.items():
            if when > recent and each not in ended:
                break
        else:
            return True
        return False

    def cycle_ended(self, track: int, stepped: Iterable[int]) -> None:
        """These stepped in the cycle that is over."""
        self._cycles_ended += 1
        known = self._last_stepped.get(track)
        if known is None:
            known = self._last_stepped[track] = {}
        for each in stepped:
            known[each] = self._cycles_ended

    def came_late(self, track: int, optimizer: int) -> None:
        """This one stepped after its cycle seemed to be over."""
        self._last_stepped[track][optimizer] = self._cycles_ended

    def clear(self) -> None:
        """Forget them all."""
        self._last_stepped.clear()


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
        self._owner_is_met = False
        self._known: dict[int, KnownOptimizer] = {}
        """The optimizers of this training, by identity."""
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
        self._begin_held = guard("discarded gradients", self._held.step_begins)
        self._note_held = guard("discarded gradients", self._held.backward_ended)
        self._follow = guard("discarded gradients", self._held.at_gate)
        self._take_norm = guard("gradient norm", self._norm)
        self._take_learning_rates = guard("learning rate", take_rates)
        self._take_scale = guard("loss scale", take_scale)

    @property
    def holds_gradients(self) -> bool:
        """Whether there are gradients of backward passes that no optimizer has begun to use."""
        return bool(self._cycle.micro_batches) and not self._cycle.stepped

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """Runs when the script has made an optimizer."""
        self._since.optimizer_made(optimizer)

    def backward(self, tensors: Any) -> None:
        """Runs right before gradients are computed."""
        self._since.backward_began()
        if self._evaluating and self._evaluated:
            return
        if self._cycle.stepped and not self._evaluating:
            self._end_cycle()
        cycle = self._cycle
        if cycle.micro_batches:
            self._look_back(cycle)
        else:
            self._begin_held()
        cycle.micro_batches += 1
        self._losses_before = len(cycle.losses)
        if cycle.clips:
            cycle.clips.clear()  # what was clipped before more gradients came is not what the optimizer will get
        self._take_losses(cycle, tensors, self._unscaled_loss)
        if len(cycle.losses) > MOST_LOSSES:
            cycle.condense()
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
        if self.holds_gradients:
            self._cycle.discard(owner, parameters_of(owner))

    def clip(self, gradients: Sequence[Tensor], order: Any, norm: Tensor) -> None:
        """Runs after the script took a norm of gradients."""
        if not self._cycle.stepped and not hasattr(norm, "full_tensor"):
            take_clip(self._cycle, gradients, order, norm)

    def clipped(self, kind: str, limit: Any) -> None:
        """Runs after the script clipped gradients."""
        if not self._cycle.stepped:
            take_limit(self._cycle, kind, limit)

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
        stepped = self._cycle.stepped
        if stepped and (id(optimizer) in stepped or self._is_another(optimizer, self._cycle)):
            self._end_cycle()
        cycle = self._cycle
        is_first = not cycle.stepped
        if is_first:
            owner = self._on_gate(optimizer)
            if owner is self._owner and not cycle.micro_batches and self._is_late(optimizer):
                return
            cycle.owner = owner
            if owner is not self._owner or not self._owner_is_met:
                self._belongs_to(owner)
            if cycle.discards:
                cycle.drop_discarded(optimizer)
        known, is_new = self._known.get(id(optimizer)), False
        if known is None or known.optimizer() is not optimizer:
            known, is_new = self._meet(optimizer, cycle.track), self._since.is_new(optimizer)
        cycle.track, cycle.place = known.track, known.place
        if is_first:
            cycle.begins_step = self._steps.begins(cycle.track, is_new)
        cycle.stepped.append(id(optimizer))
        unscale, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if cycle.scaler is not None or found_inf is not None:
            self._take_scale(cycle, optimizer)
        if not known.is_settled or id(optimizer) not in self._held.followed:
            self._follow(optimizer)
            self._take_engine(cycle, optimizer, known)
        elif known.engine is not None:
            cycle.engine = known.engine() or cycle.engine
        self._take_norm(whole_gradients_of(optimizer), unscale)
        self._take_learning_rates(cycle, optimizer, known)
        begins = cycle.begins_step
        self._survey.at_gate(optimizer, unscale, known.place, cycle.norms, cycle.limits, begins_step=begins)

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
        if not cycle.stepped:
            return
        cycle.ended.add(id(optimizer))
        self._survey.after_step(optimizer, getattr(optimizer, "grad_scale", None), cycle.place, self._swallowing)
        # An engine can be asked only when its own step is over.
        if cycle.engine is None and self._order.is_complete(cycle.track, cycle.ended):
            self._end_cycle()

    def _engine_found(self, cycle: Cycle, optimizer: Optimizer, known: KnownOptimizer) -> None:
        engine = self._engines.engine_of(optimizer)
        cycle.engine = cycle.engine if engine is None else engine
        reaches = self._held.reaches(optimizer) if cycle.micro_batches else None
        cycle.copied = cycle.copied or reaches is False
        if reaches:  # it is so from now on
            known.is_settled, known.engine = True, None if engine is None else weakref.ref(engine)

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
            self._take_learning_rates(cycle, optimizer, self._meet(optimizer, 0))
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
        """What the script has discarded since the backward pass before."""
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
        self._cycle.owner, self._owner_is_met = owner, True
        if owner is not self._owner:
            self._owner, self._last, self._ended_at = owner, None, None
            self._skips = Skips({})
            self._tracks.begin_training()
            self._known.clear()
            self._order.clear()
            self._steps.begin_training()
            self._survey.close()
            self._survey = self._survey_for(owner) or NoSurvey()

    def _meet(self, optimizer: Optimizer, track: int) -> KnownOptimizer:
        """An optimizer comes to its gate for the first time in this training."""
        track = self._tracks.join(optimizer, track)
        dead = [key for key, each in self._known.items() if each.optimizer() is None]
        for key in dead:
            del self._known[key]
        known = KnownOptimizer(optimizer, track, self._tracks.track_place(track), self._tracks.group_place)
        self._known[id(optimizer)] = known
        return known

    def _is_another(self, optimizer: Optimizer, cycle: Cycle) -> bool:
        """Whether this step belongs to another training than that cycle, one that no backward pass has announced."""
        return self._tracks.track_of(optimizer) != cycle.track and self._since.anything_new(optimizer)

    def _is_late(self, optimizer: Optimizer) -> bool:
        """Whether this step still belongs to the cycle that seemed to be over."""
        last = self._last
        if last is None or id(optimizer) in last.stepped or self._is_another(optimizer, last):
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
        place, skips = cycle.place, self._skips
        cycle.blocks, cycle.tables = self._survey.end(cycle.begins_step)

        def read(values: Sequence[float], rows: Sequence[Sequence[float]]) -> None:
            self._on_reading(cycle.owner, reading_of(cycle, values, rows, place, step_time, when, skips))

        self._readback.fetch(scalars_of(cycle), read, rows_of(cycle) if cycle.blocks or cycle.tables else ())

    def _norm(self, gradients: Sequence[Tensor], grad_scale: Tensor | None) -> None:
        norm = total_norm(gradients)
        if norm is not None:
            self._cycle.norms.append(norm if grad_scale is None else norm / grad_scale)
            if self._cycle.clips:
                self._cycle.gradients.update(map(id, gradients))
