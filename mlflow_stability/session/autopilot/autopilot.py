"""The autopilot of one recording: judges each step before and after it, and carries out decisions.

Guarantees: states are copied and restored only between two steps, when nothing is hidden; a part that fails is switched
off and the training continues without it; only `TrainingDiverged` is raised.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.errors import ChangingPartsError
from mlflow_stability.probes.forward.forward_passes import ForwardWatch
from mlflow_stability.probes.ranks.rank_exchange import Silence
from mlflow_stability.probes.step.capture import ProbeReading, StepCapture
from mlflow_stability.recovery.easing import rates_of
from mlflow_stability.recovery.nan_origin.batch_capture import BatchCapture
from mlflow_stability.recovery.rollback_state import HEALTHY, NOTHING, Decision
from mlflow_stability.recovery.skipping.loss_scale import calm_loss_scaler, cap_loss_scale, cut_loss_scale
from mlflow_stability.recovery.state.training_parts import TrainingParts
from mlflow_stability.session.autopilot.decider import AutopilotContext, Decider
from mlflow_stability.session.autopilot.known_parts import KnownParts, PartsChange
from mlflow_stability.session.autopilot.states import BestValue, States
from mlflow_stability.session.autopilot.step_modifier import (
    AutopilotPart,
    BufferWatch,
    StepModifier,
    StepRecord,
    with_used_rate,
)
from mlflow_stability.session.autopilot.training_rollback import TrainingRollback
from mlflow_stability.session.recording.recording import Recording
from mlflow_stability.session.recording.script_metrics import ScriptMetric
from mlflow_stability.vocabulary.loss_level import NoLevel
from mlflow_stability.vocabulary.measured.signal import StepReading
from mlflow_stability.vocabulary.result import Finding

SAVE_SECONDS = 60.0  # how long the end of a training waits for its last good state to be written


class Autopilot:
    """The autopilot of one recording; of None on a rank that does not record."""

    def __init__(self, recording: Recording | None, context: AutopilotContext) -> None:
        settings = context.settings
        self._policy = policy = settings.policy
        self._keeps = policy.rolls_back or bool(context.stop_on) or policy.best_by is not None
        """Whether states are kept: to go back to them, or to have the last good one where the training is stopped."""
        self._recording = recording
        self._context = context
        self._guard = guard = context.guard
        self._ranks = context.ranks
        self._ranks.begin(recording is not None)
        self.step = recording.step if recording is not None else 0
        """Step of the newest capture; the captures of a GAN's halves share one."""
        self._captures = 0
        self._is_whole = self._was_rolled_back = self._has_halves = False
        self._delayed: Decision | None = None
        """A rollback that waits until both halves of an iteration have had their step."""
        self._parts = KnownParts()
        self._stops = bool(context.stop_on) and not (recording is None and self._ranks.is_alone)
        """Whether conditions are checked before each step; ranks stop together."""
        self._modifier = StepModifier(settings, self._emit, self._ranks.any_broken)
        self._states = States(
            policy,
            guard,
            context.open_directory,
            self.step + 1,
            self._ranks.is_alone,
            policy.extra_state,
            context.checkpoint_ranks,
            settings.memory_budget,
            self._ranks.here,
        )
        self._batches = context.batches
        self._decider = Decider(
            context, self._modifier, self._states, self._emit, recording is not None, self._has_level
        )
        self._rollback = TrainingRollback(
            self._decider, self._states, self._modifier, self._ranks, context, recording, self._emit
        )
        self._stale = self._rollback.stale
        self._stale.first_step = self.step
        self._largest_scale = policy.largest_scale
        self._best = BestValue(policy.best_by, policy.best_mode)
        if recording is not None and (context.stop_on or policy.best_by is not None):
            recording.listener = self.on_script_metric
        watch = BufferWatch(guard, self._modifier.guard)
        self._forward = None if recording is not None else ForwardWatch(guard, [watch])
        """Observes forward passes on a rank without a recording; those of a recording are observed anyway."""
        if recording is not None:
            recording.before_forward = watch
        self._capture: StepCapture | None = None
        self._record: StepRecord | None = None
        self._pending: deque[StepRecord] = deque()
        self.has_eased = False  # whether a step was taken at a reduced learning rate
        self._rates: dict[int, tuple[float, ...]] = {}
        self._scaler: Any = None
        self._all_parts = guard(AutopilotPart.TRAINING_PARTS, lambda: self._parts_now(at_once=True))
        self._write_best = guard(AutopilotPart.CHECKPOINTS, self._best_written)
        self._swallow = guard(AutopilotPart.GUARD, self._modifier.swallowed)
        self._restore = guard(AutopilotPart.PUTTING_BACK, self._modifier.step_ending)
        self._before_closure = guard(AutopilotPart.GUARD, self._modifier.guard.before_closure)
        self._evaluated = guard(AutopilotPart.GUARD, self._modifier.guard.evaluated_again)
        self._ease = guard(AutopilotPart.CLIPPING_AND_EASING, self._modifier.ease)
        self._show_rate = guard(AutopilotPart.CLIPPING_AND_EASING, self._modifier.show_rate)

    def before_backward(self, tensors: Any) -> None:
        if self._states.incomplete is not None:
            self._run(AutopilotPart.SNAPSHOTS, self._states.complete, self._parts.alive())
        if self._ranks.pending is HEALTHY and self.step < self._states.quiet_until and self._delayed is None:
            self._ranks.pending = None
        elif self._ranks.pending is not None:
            self._carry_out(late=True)
        if self._stale.left and self._run(AutopilotPart.ROLLBACK, self._stale.is_stale, tensors):
            self._modifier.skip_next()
        if self._batches is not None and BatchCapture.part not in self._guard.off:
            try:
                self._batches.capture.backward_began(tensors)
            except BaseException as error:
                self._guard.contain(BatchCapture.part, error)

    def before_closure(self, optimizer: Optimizer) -> None:
        if self._modifier.guards:
            self._before_closure(optimizer)
        if self._modifier.easing is not None:  # LBFGS reads its learning rate before it calls the closure
            self._ease(optimizer, self.step + 1)

    def closure_begins(self, optimizer: Optimizer) -> None:
        if self._modifier.easing is not None:  # it sees the script's own learning rate
            self._show_rate(optimizer)

    def evaluated_again(self, optimizer: Optimizer) -> None:
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
        record = self._record
        if record is None or capture is not self._capture:
            record = self._new_record(capture, place)
        if self._parts.settled.get(id(optimizer)) != len(optimizer.param_groups):
            self._run(AutopilotPart.TRAINING_PARTS, self._meet, optimizer)
        if self._forward is not None and self._modifier.has_buffers:
            self._run(AutopilotPart.FORWARD_PASSES, self._forward.before_step, optimizer)
        votes = False
        if self._stops or not self._ranks.is_alone:
            votes = self._ask_ranks(optimizer, capture, record, norm)
        modifier, off = self._modifier, self._guard.off
        if (modifier.guards or modifier.is_asked_to_skip) and AutopilotPart.GUARD not in off:
            try:
                modifier.judge(optimizer, capture, record, norm, companions)
            except BaseException as error:
                self._guard.contain(AutopilotPart.GUARD, error)
        if self._batches is not None:
            if record.skipped_by is not None or record.flag is not None:
                self._batches.judged(record.skipped_by, record.flag is not None, self._parts.optimizers())
            self._batches.capture.loss = None  # not needed any more: it keeps the graph alive
        if votes:
            self._receive(record, ends_vote=False)
            capture.norm_of_all, capture.loss_of_all = self._ranks.norm, self._ranks.loss
        if record.skipped_by is not None or record.asked_for:
            return
        if modifier.clips or modifier.easing is not None:
            self._run(AutopilotPart.CLIPPING_AND_EASING, modifier.shape, optimizer, record, norm)
            self.has_eased = self.has_eased or record.eased
        groups = optimizer.param_groups
        rate = groups[0].get("lr") if len(groups) == 1 else None
        rates = (rate,) if type(rate) is float else rates_of(optimizer)
        record.rates[id(optimizer)] = self._rates[id(optimizer)] = rates

    def swallowed(self, optimizer: Optimizer, capture: StepCapture, place: str) -> None:
        record = self._record
        if record is None or capture is not self._capture:
            record = self._new_record(capture, place)
        self._run(AutopilotPart.TRAINING_PARTS, self._meet, optimizer)
        record.skipped_by = "scaler"
        self._swallow(optimizer, capture, record)

    def step_ending(self, optimizer: Optimizer) -> bool:
        modifier = self._modifier
        if modifier.easing is None and not modifier.guard.changes_step:
            modifier.guard.awaits_forward = modifier.has_buffers
            return False
        skipped = bool(self._restore(optimizer))
        if skipped and self._record is not None and self._capture is not None:
            self._record.skipped_by = "guard"
            self._capture.found_inf.append(torch.ones((), dtype=torch.float32))
        return skipped

    def step_over(self, capture_over: bool, is_whole: bool, scan: AbstractContextManager[None]) -> None:
        self._is_whole = is_whole
        if capture_over or self._captures == 1:
            pending, decider = self._ranks.pending, self._decider
            is_quiet = (pending is HEALTHY or pending is None) and self.step < self._states.quiet_until
            if is_quiet and self._delayed is None and not (decider.cuts_scale or decider.calms_scaler):
                self._ranks.pending = None  # nothing is due
            else:
                with scan:  # new objects may be searched before a state is copied
                    self._carry_out(late=False)
        if capture_over and self._largest_scale is not None and self._scaler is not None:
            self._run(AutopilotPart.LOSS_SCALE, cap_loss_scale, self._scaler, self._largest_scale)

    def capture_ended(self) -> None:
        if self._record is not None and not self._record.is_ended:
            self._record.is_ended = True
            self._pending.append(self._record)

    def with_used_rate(self, reading: ProbeReading) -> ProbeReading:
        """Add the learning rate that the step was really taken with."""
        record = self._pending[0] if self._pending else None
        return reading if record is None or not record.eased else with_used_rate(reading, record)

    def on_reading(self, reading: StepReading, findings: Sequence[Finding]) -> None:
        """Runs when a step was read and judged by the panel."""
        if not self._pending:
            return
        record, guard = self._pending.popleft(), self._guard
        if AutopilotPart.DECISIONS in guard.off:
            return
        try:
            decision = self._decider.take(record, reading, findings, self._parts)
            if self._states.findings or self._states.writer is not None:
                self._emit_checkpoint_events()
            if not self._rollback.is_running:
                self._ranks.give(decision)
        except BaseException as error:
            guard.contain(AutopilotPart.DECISIONS, error)

    def on_script_metric(self, metric: ScriptMetric) -> None:
        """Runs when the script has logged the metric of `best_by`, or a validation loss."""
        if metric.signals:
            self._decider.hear(StepReading(self.step, metric.signals, metric.values))
        if self._best.is_new(metric) and not self._write_best(metric.values[0]):
            self._best.forget()

    def was_rolled_back(self) -> bool:
        was, self._was_rolled_back = self._was_rolled_back, False
        return was

    @property
    def good_steps(self) -> tuple[int, ...]:
        return tuple(state.step for state in self._states.candidates(with_disk=True))

    def skip_next(self) -> None:
        self._modifier.skip_next()

    def checkpoint_now(self) -> bool:
        """Write the current state, between two steps; False while the one before is being written.

        Rank 0 writes, or all ranks after the next step where the state is sharded.
        """
        parts = self._parts.alive()
        if parts is None or self._recording is None:
            return False
        return self._states.write_now(parts, self.step, self._decider.loss, self._rates)

    def roll_back(self) -> bool:
        """Restore the newest good state, between two steps; False without one.

        With several ranks, rank 0 decides and all restore after the next step.
        """
        decision = self._decider.by_hand(self.step)
        if decision is None:
            return False
        if not self._ranks.is_alone:
            self._ranks.give(decision)
            return True
        return self._roll_back(decision)

    def release(self) -> None:
        """Restore whatever is hidden or written at the moment."""
        for optimizer in self._parts.optimizers():
            self._restore(optimizer)

    def close(self, seconds: float) -> None:
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
        """Write a checkpoint and say so; empty where it cannot be written."""
        if not self.checkpoint_now():
            return ""
        if self._states.writes_together and not self._ranks.is_alone:
            return "All ranks write a checkpoint after the next step."
        return f"Wrote a checkpoint of step {self.step}."

    def _best_written(self, value: float) -> bool:
        parts = self._parts_now()
        if parts is None:
            return False
        return self._states.write_now(parts, self.step, self._decider.loss, self._rates, value)

    def _ask_ranks(self, optimizer: Optimizer, capture: StepCapture, record: StepRecord, norm: Tensor | None) -> bool:
        """Send what was decided before a step is judged, and whether a condition to stop on is met.

        Return whether the answer is still to be received.
        """
        met = None
        if self._stops:
            part, alone = AutopilotPart.STOP_CONDITIONS, self._ranks.is_alone
            met = self._run(part, self._decider.look_for_stop, optimizer, capture, record, norm, alone)
        votes = self._ranks.announce(capture, self.step, self._due, met)
        if votes and not self._modifier.guards:  # else the flag of the guard brings it along
            self._receive(record, ends_vote=True)
            return False
        return votes

    def _receive(self, record: StepRecord, *, ends_vote: bool) -> None:
        """Take the answer of all ranks, after the guard's vote or instead of it."""
        stops = self._ranks.receive(AutopilotPart.GUARD in self._guard.off, self.step, ends_vote)
        if stops:
            record.stopped_together = record.asked_for = True
            record.skipped_by = None
            if ends_vote:
                self._modifier.skip_next()
        self._modifier.guards = self._modifier.guards and not self._ranks.somebody_off
        if self._ranks.silence is not None:
            self._run(AutopilotPart.RANKS, self._raise_silence, self._ranks.silence)

    def _new_record(self, capture: StepCapture, place: str) -> StepRecord:
        self._capture, self._scaler = capture, capture.scaler
        self._captures += 1
        if capture.begins_step:
            self.step += 1
        else:
            self._has_halves = True
        batch_number = -1 if self._batches is None else self._batches.batch_number
        self._record = StepRecord(self.step, place, has_scaler=capture.scaler is not None, batch_number=batch_number)
        return self._record

    def _meet(self, optimizer: Optimizer) -> None:
        try:
            change = self._parts.meet(optimizer, self._scaler)
        except ChangingPartsError:
            self._states.forget()  # unknown which training the states belong to
            raise
        parts = self._parts.alive() if change is not PartsChange.NONE else None
        if parts is None:
            return
        began = self._capture is None or self._capture.begins_step
        if change is PartsChange.OPTIMIZER:
            self._states.optimizer_joined(parts)
            if not began or self.step == 1 or not self._states.ring.is_affordable():
                return
        else:
            self._modifier.parts_changed(parts)
            if change is PartsChange.GROWN:
                self._states.parts_joined(parts)
                return
            self._states.parts_changed(parts)
        self._run(AutopilotPart.SNAPSHOTS, self._states.take_initial, parts, self.step - began)

    def _parts_now(self, *, at_once: bool = False) -> TrainingParts | None:
        """Return the parts, including those made since the last search."""
        change = self._parts.look_again(self._scaler, at_once=at_once)
        parts = self._parts.alive()
        if change is not PartsChange.NONE and parts is not None:
            self._modifier.parts_changed(parts)
            self._states.parts_joined(parts)
        return parts

    def _carry_out(self, late: bool) -> None:
        """Carry out a decision; `late`: the next step has begun already."""
        decision, self._ranks.pending = self._ranks.pending or NOTHING, None
        if not late and self._scaler is not None and (self._decider.cuts_scale or self._decider.calms_scaler):
            self._run(AutopilotPart.LOSS_SCALE, self._settle_scale, self._scaler)
        if self._keeps or self._states.cadence is not None:
            # Without rollbacks no checkpoint is deleted.
            self._run(AutopilotPart.SNAPSHOTS, self._states.prove, decision, self.step, self._keeps)
        ending = decision.ending
        if ending is None and decision.stop is not None:
            ending = self._decider.stopped_together(decision.stop, self.step)
        if ending is not None:
            self._decider.stop_over()
            if decision.rolls_back:
                self._roll_back(decision)
            if self._recording is not None or self._states.writes_together:
                self._run(AutopilotPart.CHECKPOINTS, self._states.save_last_good, SAVE_SECONDS, self._decider.loss_of)
            raise ending
        rollback = self._delayed or decision
        if rollback.rolls_back:
            # In the middle of an iteration, one half of a GAN would be one step ahead of the other from then on.
            self._delayed = rollback if self._has_halves and (late or not self._is_whole) else None
            if self._delayed is None:
                self._roll_back(rollback)
            return
        if decision.release:
            self._modifier.end_easing()
        if decision.cut or decision.reset or decision.ahead:
            part, parts = AutopilotPart.SMALLER_STEPS, self._parts.alive()
            self._run(part, self._modifier.adjust, decision, self.step, parts, self._write_ahead)
        if not late and (self._keeps or decision.checkpoint):
            self._run(AutopilotPart.SNAPSHOTS, self._keep_state, decision)
        if self._ranks.is_alone:
            self._states.find_next_change(keeps=self._keeps)

    def _settle_scale(self, scaler: Any) -> None:
        decider, policy = self._decider, self._policy
        if decider.cuts_scale:
            cut_loss_scale(scaler, policy.cut_factor, policy.smallest_scale)
        if decider.calms_scaler:
            calm_loss_scaler(scaler)
        decider.cuts_scale = decider.calms_scaler = False

    def _keep_state(self, decision: Decision) -> None:
        record = self._record
        if record is None or not self._is_whole:
            return
        if decision.trouble or record.skipped_by is not None or record.asked_for:
            return
        if self._ranks.is_alone:
            ring, disk = self._states.is_due(self._parts, self.step)
        else:
            ring, disk = decision.snapshot, decision.checkpoint
        disk = disk and (self._recording is not None or self._states.writes_together)
        parts = self._parts_now() if ring or disk else None
        if parts is not None:
            self._states.take(parts, self.step, self._decider.loss, self._rates, ring=ring, disk=disk)

    def _due(self) -> tuple[bool, bool]:
        if not (self._keeps or self._states.wanted is not None) or not self._parts.are_there():
            return False, False
        ring, disk = self._states.is_due(self._parts, self.step)
        return ring and self._keeps, disk

    def _roll_back(self, decision: Decision) -> bool:
        gone = self._rollback.run(decision, self.step, self._all_parts())
        self._was_rolled_back = self._was_rolled_back or gone
        self._decider.skips.forget_row()
        return gone

    def _run(self, part: AutopilotPart, body: Callable[..., Any], *args: Any) -> Any:
        """Run a part that can fail alone; None where it fails or is switched off."""
        if part in self._guard.off:
            return None
        try:
            return body(*args)
        except BaseException as error:
            self._guard.contain(part, error, self._states.forget if part is AutopilotPart.SNAPSHOTS else None)
            return None

    def _raise_silence(self, silence: Silence) -> None:
        raise ConnectionError(f"{silence.value}; no step is skipped or rolled back from here on")

    def _has_level(self) -> bool:
        """Whether the level of the loss says how good the weights are; jumps of a signed loss, and of a GAN's, do."""
        jumps = (None, NoLevel.ADVERSARIAL, NoLevel.SIGNED)
        return self._recording is None or self._recording.no_level in jumps

    def _emit_checkpoint_events(self) -> None:
        for event in self._states.events():
            self._emit(event)

    def _emit(self, event: Finding) -> None:
        if self._recording is not None and not self._recording.closed:
            self._recording.emit(event)
