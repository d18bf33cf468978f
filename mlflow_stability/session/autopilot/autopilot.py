"""Autopilot of one recording: judges each step before and after it, and carries out what was decided.

In: the places of the meter, and each step once it was read. Out: calls to those who know how, each as a part that can
fail alone. Guarantees: states are copied and restored only between two steps, when nothing is hidden; a part that fails
is switched off and the training goes on without it; only `TrainingDiverged` ever leaves here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.errors import TrainingDiverged
from mlflow_stability.probes.forward import ForwardWatch
from mlflow_stability.probes.step import StepCapture
from mlflow_stability.probes.step.reading import ProbeReading
from mlflow_stability.recovery.rollback_state import Decision
from mlflow_stability.recovery.skipping import cap_loss_scale, values_before_step
from mlflow_stability.recovery.state import TrainingParts
from mlflow_stability.recovery.stop_conditions import Stop, StopCondition
from mlflow_stability.session.autopilot.autopilot_config import AutopilotConfig, AutopilotContext
from mlflow_stability.session.autopilot.autopilot_part import AutopilotPart
from mlflow_stability.session.autopilot.known_parts import ChangingPartsError, KnownParts, PartsChange
from mlflow_stability.session.autopilot.ranks import Orders, ranks_of, stop_named
from mlflow_stability.session.autopilot.rollback_controller import RollbackController, RollbackExecutor
from mlflow_stability.session.autopilot.states import States
from mlflow_stability.session.autopilot.step_adjustment import StepAdjustment
from mlflow_stability.session.autopilot.step_evaluator import StepEvaluator
from mlflow_stability.session.autopilot.step_modifier import BufferWatch, StepModifier
from mlflow_stability.session.autopilot.step_record import StepRecord
from mlflow_stability.session.autopilot.used_rate import with_used_rate
from mlflow_stability.session.recording import Recording, ScriptMetric
from mlflow_stability.vocabulary.loss_level import NoLevel
from mlflow_stability.vocabulary.measured import StepReading
from mlflow_stability.vocabulary.result import Finding

SAVE_SECONDS = 60.0
"""For how long the end of a training waits for its last good state to be written."""


class BestValue:
    """The best value so far of the metric that says which state is the best."""

    def __init__(self, metric: str | None, mode: str) -> None:
        self._metric = metric
        self._sign = -1.0 if mode == "max" else 1.0
        self._best = self._before = math.inf

    def is_new(self, heard: ScriptMetric) -> bool:
        """Whether this is that metric, at a better value than before."""
        if self._metric is None or heard.name != self._metric:
            return False
        value = self._sign * heard.values[0]
        if not value < self._best:
            return False
        self._best, self._before = value, self._best
        return True

    def forget(self) -> None:
        """That state could not be written: the next one need only be better than the one before."""
        self._best = self._before


class Autopilot:
    """The autopilot of one recording; of none, in a process that trains with others and does not record."""

    def __init__(self, plan: AutopilotConfig, recording: Recording | None, context: AutopilotContext) -> None:
        self._plan = plan
        self._keeps = plan.keeps
        self._recording = recording
        self._context = context
        self._ranks = ranks_of(context.vote, decides=recording is not None)
        self.step = recording.step if recording is not None else 0
        """The step of the newest capture; the captures of a GAN's halves are of one step."""
        self._captures = 0
        """How many captures there were."""
        self._is_whole = self._was_rolled_back = self._has_halves = False
        self._delayed: Decision | None = None
        """A rollback that waits until both halves of an iteration have had their step."""
        self._parts = KnownParts()
        self._stops = bool(plan.stop_on) and not (recording is None and self._ranks.is_alone)
        """Whether there are conditions to look at before each step; several processes stop together."""
        self._stop: Stop | None = None
        """Why the training ends; no step is taken until its reading has come."""
        self._modifier = StepModifier(plan.policy, plan.adaptive_clip, context.vote)
        self._states = States(
            plan.policy,
            context.guard,
            context.open_directory,
            self.step + 1,
            self._ranks.is_alone,
            plan.extra_state,
            context.checkpoint_ranks,
            plan.memory_budget,
            1 if context.vote is None else context.vote.ranks_here,
        )
        self._controller = RollbackController(
            plan.policy, self._modifier, self._states, self._emit, self._loss_has_level
        )
        self._controller.stale.first_step = self.step
        guard, self._batches = context.guard, context.batches
        adjustment = StepAdjustment(plan.policy, self._modifier, self._emit)
        self._evaluator = StepEvaluator(
            plan,
            self._modifier,
            self._controller,
            context.batches,
            self._emit,
            recording is not None,
            adjustment if adjustment.is_asked_for else None,
        )
        self._largest_scale = plan.policy.largest_scale
        self._best = BestValue(plan.policy.best_by, plan.policy.best_mode)
        if recording is not None and (plan.stop_on or plan.policy.best_by is not None):
            recording.listener = self.on_heard
        watch = BufferWatch(guard, self._modifier.guard)
        self._forward = None if recording is not None else ForwardWatch(guard, [watch])
        """The forward passes of a process without a recording; those of a recording are watched anyway."""
        self._find_models = (
            None if self._forward is None else guard(AutopilotPart.FORWARD_PASSES, self._forward.before_step)
        )
        if recording is not None:
            recording.before_forward = watch
        self._capture: StepCapture | None = None
        self._record: StepRecord | None = None
        self._pending: deque[StepRecord] = deque()
        self._rates: dict[int, tuple[float, ...]] = {}
        self._scaler: Any = None
        self._rollback = RollbackExecutor(self._controller, self._ranks, context, recording, self._emit)
        self._meet = guard(AutopilotPart.TRAINING_PARTS, self._parts_met)
        self._all_parts = guard(AutopilotPart.TRAINING_PARTS, lambda: self._parts_now(at_once=True))
        self._write_best = guard(AutopilotPart.CHECKPOINTS, self._best_written)
        self._look_for_stop = guard(AutopilotPart.STOP_CONDITIONS, self._stop_looked_for)
        self._judge = guard(AutopilotPart.GUARD, self._modifier.judge)
        self._shape = guard(AutopilotPart.CLIPPING_AND_EASING, self._modifier.shape)
        self._swallow = guard(AutopilotPart.GUARD, self._modifier.swallowed)
        self._restore = guard(AutopilotPart.PUTTING_BACK, self._modifier.step_ending)
        self._before_closure = guard(AutopilotPart.GUARD, self._modifier.guard.before_closure)
        self._evaluated = guard(AutopilotPart.GUARD, self._modifier.guard.evaluated_again)
        self._ease = guard(AutopilotPart.CLIPPING_AND_EASING, self._modifier.ease)
        self._show_rate = guard(AutopilotPart.CLIPPING_AND_EASING, self._modifier.show_rate)
        self._snapshot = guard(AutopilotPart.SNAPSHOTS, self._keep_state)
        self._complete = guard(AutopilotPart.SNAPSHOTS, self._states.complete)
        self._begin_states = guard(AutopilotPart.SNAPSHOTS, self._states.take_initial)
        self._prove = guard(AutopilotPart.SNAPSHOTS, self._states.prove)
        self._decide = guard(AutopilotPart.DECISIONS, self._decided)
        self._settle_scale = guard(AutopilotPart.LOSS_SCALE, self._evaluator.settle_scale)
        self._cap_scale = guard(AutopilotPart.LOSS_SCALE, cap_loss_scale)
        self._adjust = guard(AutopilotPart.SMALLER_STEPS, adjustment.carry_out)
        self._tell_of_silence = guard(AutopilotPart.RANKS, self._silence)
        self._look_for_stale = guard(AutopilotPart.ROLLBACK, self._controller.stale.is_stale)

    def before_backward(self, tensors: Any) -> None:
        """Runs before anything else of a backward pass."""
        if self._states.has_incomplete:
            self._complete(self._parts.alive())
        if self._ranks.has_orders:
            self._carry_out(late=True)
        if self._controller.stale.left and self._look_for_stale(tensors):
            self._modifier.skip_next()
        if self._batches is not None:
            self._batches.backward_began(tensors)

    def before_closure(self, optimizer: Optimizer) -> None:
        """Runs right before a step that was given a closure."""
        if self._modifier.guards:
            self._before_closure(optimizer)
        if self._modifier.easing is not None:  # LBFGS reads its learning rate before it calls the closure
            self._ease(optimizer, self.step + 1)

    def closure_begins(self, optimizer: Optimizer) -> None:
        """Runs before each evaluation of a closure, which sees the learning rate of the script."""
        if self._modifier.easing is not None:
            self._show_rate(optimizer)

    def evaluated_again(self, optimizer: Optimizer) -> None:
        """Runs after each further evaluation."""
        self._evaluated(optimizer)
        if self._modifier.easing is not None and self._record is not None and not self._record.skipped_by:
            self._ease(optimizer, self.step)

    def before_step(
        self,
        optimizer: Optimizer,
        capture: StepCapture,
        place: str,
        norm: Tensor | None,
        companions: Sequence[Optimizer],
    ) -> None:
        """Runs when the gradients are complete and measured, and not used yet."""
        record = self._record_of(capture, place)
        self._meet(optimizer)
        if self._find_models is not None and self._modifier.has_buffers:
            self._find_models(optimizer)
        met = self._look_for_stop(optimizer, capture, record, norm) if self._stops else None
        votes = self._ranks.announce(capture, self.step, self._due, met)
        if votes and not self._modifier.guards:  # else the flag of the guard brings it along
            self._receive(record, ends_vote=True)
            votes = False
        self._judge(optimizer, capture, record, norm, companions, record not in self._pending)
        if self._batches is not None:
            if record.skipped_by or record.flag is not None:
                self._batches.judged(record.skipped_by, record.flag is not None, self._parts.optimizers())
            self._batches.let_loss_go()
        if votes:
            self._receive(record, ends_vote=False)
            capture.norm_of_all, capture.loss_of_all = self._ranks.norm, self._ranks.loss
        self._shape(optimizer, record, norm)
        self._rates.update(record.rates)

    def pause(self, begin: bool) -> None:
        """Runs when processes begin to make different numbers of steps (`Join`), and when that is over."""
        self._ranks.pause(begin)

    def swallowed(self, optimizer: Optimizer, capture: StepCapture, place: str) -> None:
        """Runs when a loss scaler threw a step away."""
        record = self._record_of(capture, place)
        self._meet(optimizer)
        record.skipped_by = "scaler"
        self._swallow(optimizer, capture, record)

    def step_ending(self, optimizer: Optimizer) -> bool:
        """Runs right after a step; whether it was skipped."""
        skipped = bool(self._restore(optimizer))
        if skipped and self._record is not None and self._capture is not None:
            self._record.skipped_by = "guard"
            self._capture.found_inf.append(torch.ones((), dtype=torch.float32))
        return skipped

    def step_over(self, capture_over: bool, is_whole: bool) -> None:
        """Runs after that, when all is as the script expects it. `is_whole`: no other training is expected in it."""
        self._is_whole = is_whole
        if capture_over or self._captures == 1:
            self._carry_out(late=False)
        if capture_over and self._largest_scale is not None and self._scaler is not None:
            self._cap_scale(self._scaler, self._largest_scale)

    def capture_ended(self) -> None:
        """Runs before the reading of a capture is asked for."""
        if self._record is not None:
            self._pending.append(self._record)

    def with_used_rate(self, reading: ProbeReading) -> ProbeReading:
        """The same with the learning rate that its step was really taken with, where we have reduced it."""
        record = self._pending[0] if self._pending else None
        return reading if record is None or not record.eased else with_used_rate(reading, record)

    def on_reading(self, reading: StepReading, events: Sequence[Finding]) -> None:
        """Runs when a step was read and judged by the panel."""
        record = self._pending.popleft() if self._pending else None
        if record is not None:
            self._decide(record, reading, events)

    def on_heard(self, heard: ScriptMetric) -> None:
        """Runs when the script has logged the metric that was asked for, or a validation loss."""
        if heard.signals:
            self._evaluator.hear(StepReading(self.step, heard.signals, heard.values))
        if self._best.is_new(heard) and not self._write_best(heard.values[0]):
            self._best.forget()

    def was_rolled_back(self) -> bool:
        """Whether it set the training back since this was asked last."""
        was, self._was_rolled_back = self._was_rolled_back, False
        return was

    @property
    def good_steps(self) -> tuple[int, ...]:
        """The steps whose state can be gone back to."""
        return tuple(each.step for each in self._states.candidates(with_disk=True))

    def skip_next(self) -> None:
        """Skip the next step."""
        self._modifier.skip_next()

    def checkpoint_now(self) -> bool:
        """Write the state as it is now, between two steps; False where the one before is still being written.

        Of several processes the first one writes, or all of them after the next step where the state is sharded.
        """
        parts = self._parts.alive()
        if parts is None or self._recording is None:
            return False
        return self._states.write_now(parts, self.step, self._evaluator.loss, self._rates)

    def roll_back(self) -> bool:
        """Go back to the newest good state, between two steps; False where there is none.

        Of several processes the word of the first one counts, and all go back together after the next step.
        """
        decision = self._controller.by_hand(self.step)
        if decision is None:
            return False
        if not self._ranks.is_alone:
            self._ranks.give(Orders(rollback=decision))
            return True
        return self._roll_back(decision)

    def release(self) -> None:
        """Put back whatever is hidden or written at the moment: nobody watches any more."""
        for optimizer in self._parts.optimizers():
            self._restore(optimizer)

    def close(self, seconds: float) -> None:
        """The recording ends: what is being written may arrive."""
        self.release()
        if self._forward is not None:
            self._forward.remove()
        if self._recording is not None:
            self._recording.listener = None
        self._states.close(seconds)
        self._emit_checkpoint_events()
        if self._batches is not None:
            self._batches.stop()

    def _write_ahead(self) -> str:
        """Have a checkpoint written, and say when; empty where it cannot be."""
        if not self.checkpoint_now():
            return ""
        if self._states.writes_together and not self._ranks.is_alone:
            return "All ranks write a checkpoint after the next step."
        return f"Wrote a checkpoint of step {self.step}."

    def _best_written(self, value: float) -> bool:
        """Write the state that the script has just found to be the best so far."""
        parts = self._parts_now()
        if parts is None:
            return False
        return self._states.write_now(parts, self.step, self._evaluator.loss, self._rates, value)

    def _receive(self, record: StepRecord, *, ends_vote: bool) -> None:
        """Take in what all processes have said, after the guard has voted, or instead of it."""
        stop = self._ranks.receive(AutopilotPart.GUARD in self._context.guard.off, self.step, ends_vote)
        if stop:
            record.stopped_together = record.asked_for = True
            record.skipped_by = ""
            if ends_vote:
                self._modifier.skip_next()
        self._modifier.guards = self._modifier.guards and not self._ranks.somebody_off
        if self._ranks.silent:
            self._tell_of_silence()

    def _stop_looked_for(
        self, optimizer: Optimizer, capture: StepCapture, record: StepRecord, norm: Tensor | None
    ) -> int | None:
        """Have the first step of a capture skipped, and the training ended behind it, where a condition is met.

        Gives which condition it is.
        """
        if record.stop is not None or capture.stepped[:1] != [id(optimizer)]:
            return None
        if self._stop is None:
            wanted = self._evaluator.stop_rules.looks_before
            values = values_before_step(optimizer, capture, norm, wanted)
            self._stop = self._evaluator.stop_before(self.step, values)
        if self._stop is None:
            return None
        if self._ranks.is_alone:
            record.stop = self._stop
        if self._ranks.is_alone or self._modifier.guards:
            self._modifier.skip_next()
        return self._plan.stop_on.index(self._stop.condition)

    def _stopped_together(self, number: int) -> TrainingDiverged:
        """What all ranks end with; the reason is known where a condition was met."""
        rank, condition = stop_named(number)
        known = dict(enumerate(self._plan.stop_on)).get(condition, StopCondition("a condition of another rank"))
        met = Stop(known, self.step, f"the condition was met on rank {rank}", before_step=True)
        return self._evaluator.stopped(self._stop or met)

    def _record_of(self, capture: StepCapture, place: str) -> StepRecord:
        if capture is not self._capture or self._record is None:
            self._capture = capture
            self.step += capture.begins_step
            self._captures += 1
            self._has_halves = self._has_halves or not capture.begins_step
            batch_number = -1 if self._batches is None else self._batches.batch_number
            self._record = StepRecord(
                self.step, place, has_scaler=capture.scaler is not None, batch_number=batch_number
            )
        self._scaler = capture.scaler
        return self._record

    def _parts_met(self, optimizer: Optimizer) -> None:
        try:
            change = self._parts.meet(optimizer, self._scaler)
        except ChangingPartsError:
            self._states.forget()  # nobody knows any more what they are states of
            raise
        parts = self._parts.alive() if change is not PartsChange.NONE else None
        if parts is None:
            return
        if change is PartsChange.OPTIMIZER:
            self._states.optimizer_joined(parts)
            return
        self._modifier.parts_changed(parts)
        if change is PartsChange.GROWN:
            self._states.parts_joined(parts)
            return
        self._states.parts_changed(parts)
        began = self._capture is None or self._capture.begins_step
        self._begin_states(parts, self.step - began)

    def _parts_now(self, *, at_once: bool = False) -> TrainingParts | None:
        """The parts, with those that were made since they were searched last."""
        change = self._parts.look_again(self._scaler, at_once=at_once)
        parts = self._parts.alive()
        if change is not PartsChange.NONE and parts is not None:
            self._modifier.parts_changed(parts)
            self._states.parts_joined(parts)
        return parts

    def _decided(self, record: StepRecord, reading: StepReading, events: Sequence[Finding]) -> None:
        orders = self._evaluator.evaluate(record, reading, events, self._parts)
        self._emit_checkpoint_events()
        if not self._rollback.is_running:
            self._ranks.give(orders)

    def _carry_out(self, late: bool) -> None:
        """Do what was decided; `late`: the script has begun its next step, for the reading came no sooner."""
        orders = self._ranks.take()
        if not late and self._scaler is not None:
            self._settle_scale(self._scaler)
        if self._keeps or self._states.has_checkpoints:
            self._prove(orders, self.step, self._keeps)  # nobody goes back: what was asked for stays
        if orders.stop and orders.ending is None:
            orders.ending = self._stopped_together(orders.stop)
        if orders.ending is not None:
            self._stop = None
            self._evaluator.stop_over()
            if orders.rollback is not None:
                self._roll_back(orders.rollback)
            if self._recording is not None or self._states.writes_together:
                self._context.guard(AutopilotPart.CHECKPOINTS, self._states.save_last_good)(SAVE_SECONDS)
            raise orders.ending
        rollback = self._delayed or orders.rollback
        if rollback is not None:
            # In the middle of an iteration, one half of a GAN would be one step ahead of the other from then on.
            self._delayed = rollback if self._has_halves and (late or not self._is_whole) else None
            if self._delayed is None:
                self._roll_back(rollback)
            return
        if orders.release:
            self._modifier.end_easing()
        if orders.cut or orders.reset or orders.ahead:
            self._adjust(orders, self.step, self._parts.alive(), self._write_ahead)
        if (self._keeps or orders.checkpoint) and not late:
            self._snapshot(orders)

    def _keep_state(self, orders: Orders) -> None:
        record = self._record
        if record is None or not self._is_whole:
            return
        if orders.trouble or record.skipped_by or record.asked_for:
            return
        if self._ranks.is_alone:
            ring, disk = self._states.is_due(self._parts, self.step)
        else:
            ring, disk = orders.snapshot, orders.checkpoint
        disk = disk and (self._recording is not None or self._states.writes_together)
        parts = self._parts_now() if ring or disk else None
        if parts is not None:
            self._states.take(parts, self.step, self._evaluator.loss, self._rates, ring=ring, disk=disk)

    def _due(self) -> tuple[bool, bool]:
        if not (self._keeps or self._states.is_wanted) or not self._parts.are_there():
            return False, False
        ring, disk = self._states.is_due(self._parts, self.step)
        return ring and self._keeps, disk

    def _roll_back(self, decision: Decision) -> bool:
        gone = self._rollback.run(decision, self.step, self._all_parts())
        self._was_rolled_back = self._was_rolled_back or gone
        self._evaluator.forget_row()
        return gone

    def _silence(self) -> None:
        raise ConnectionError(f"{self._ranks.silent}; no step is skipped or rolled back from here on")

    def _loss_has_level(self) -> bool:
        """Whether the level of the loss says how good the weights are; jumps of a signed loss, and of a GAN's, do."""
        jumps = (None, NoLevel.ADVERSARIAL, NoLevel.SIGNED)
        return self._recording is None or self._recording.no_level in jumps

    def _emit_checkpoint_events(self) -> None:
        for event in self._states.events():
            self._emit(event)

    def _emit(self, event: Finding) -> None:
        if self._recording is not None and not self._recording.closed:
            self._recording.emit(event)
