"""Decides what to do after each step, from what was read of it.

A step that the script asked to skip counts for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.detectors.finding_type import Instability
from mlflow_stability.errors import TrainingDiverged
from mlflow_stability.kinds.catalog import of_instability
from mlflow_stability.kinds.gradients.gradient_explosion import GradientExplosion
from mlflow_stability.kinds.loss.divergence_early import DivergenceAhead
from mlflow_stability.kinds.loss.loss_spike import LossSpike
from mlflow_stability.kinds.reported.autopilot import EarlyStopping
from mlflow_stability.probes.hooks.guarded_hooks import PartGuard
from mlflow_stability.probes.step.capture import StepCapture
from mlflow_stability.recovery.checkpoints.checkpoint_store import CheckpointRanks
from mlflow_stability.recovery.nan_origin.origin_checks import KIND as NAN_ORIGIN
from mlflow_stability.recovery.restored_losses import LossHistory
from mlflow_stability.recovery.rollback_decisions import decide, mark_carried_out
from mlflow_stability.recovery.rollback_events import (
    OF_SCALE,
    countdown_of,
    data_changed_event,
    give_up_event,
    level_ignored_event,
    what_to_change,
)
from mlflow_stability.recovery.rollback_reasons import next_older_target, preferred_state
from mlflow_stability.recovery.rollback_state import (
    HEALTHY,
    NOTHING,
    Decision,
    GoodState,
    RollbackHistory,
    Situation,
    StopPlace,
)
from mlflow_stability.recovery.skipping.skip_count import SkipCount
from mlflow_stability.recovery.state.host_copy import is_finite
from mlflow_stability.recovery.state.training_parts import TrainingParts
from mlflow_stability.recovery.stop_conditions import Stop, StopCondition, StopRules, values_before_step
from mlflow_stability.session.autopilot.known_parts import KnownParts
from mlflow_stability.session.autopilot.ranks import Ranks
from mlflow_stability.session.autopilot.states import OpenDirectory, States
from mlflow_stability.session.autopilot.step_modifier import StepModifier, StepRecord
from mlflow_stability.session.broken_batches import BatchReport, is_new_spike
from mlflow_stability.vocabulary.measured.signal import StepReading
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.settings import Settings


@dataclass(frozen=True, slots=True)
class AutopilotContext:
    """Handed to each autopilot when its recording begins."""

    settings: Settings
    stop_on: tuple[StopCondition, ...]
    guard: PartGuard
    settle: Callable[[], None]  # waits for the readings that are on their way
    open_directory: OpenDirectory
    batches: BatchReport | None
    ranks: Ranks  # the processes that act together
    warn: Callable[[str], None]  # writes a line about what may follow
    checkpoint_ranks: CheckpointRanks | None = None
    """The processes that write checkpoints together; None where there is but one."""


OR_GO_ON = 'To continue all the same: rollback=RollbackPolicy(on_give_up="continue").'
HARMFUL = of_instability(Instability.HARMFUL)  # findings after which a state that awaits healthy steps is dropped
SPIKES = (LossSpike.kind, GradientExplosion.kind)


class Decider:
    """Decisions about one training, and their history."""

    def __init__(
        self,
        context: AutopilotContext,
        modifier: StepModifier,
        states: States,
        emit: Callable[[Finding], None],
        decides: bool,
        has_level: Callable[[], bool],
    ) -> None:
        self._policy = policy = context.settings.policy
        self._guard = context.settings.guards
        self._modifier, self._states, self._batches, self._emit = modifier, states, context.batches, emit
        self._decides = decides  # whether this rank decides: only one does
        self._has_level, self._warn = has_level, context.warn
        self._countdown = countdown_of(policy)
        self._history = self._before = RollbackHistory()
        """The history, and what it was before the last rollback was decided."""
        self._losses = LossHistory()
        self.skips = SkipCount(policy)
        self._skipped_before: dict[str, float] = {}
        self._adjusts = bool(policy.reset_at_spike or policy.cut_learning_rate or policy.act_ahead)
        self._was_cut = False
        self.cuts_scale = self.calms_scaler = False  # what is done to the loss scaler before the next step
        self.loss = math.nan  # the last finite loss
        self._stop_on = context.stop_on
        self._stop_rules = StopRules(context.stop_on)
        self._stop: Stop | None = None  # why the training ends; no step is taken until its reading has come
        self._stop_heard: Stop | None = None  # a reason to stop among the metrics that the script logged
        self._is_stop_reported = False
        self._origin: Finding | None = None  # where the last non-finite value was traced to

    @property
    def rollbacks(self) -> int:
        return len(self._history.rollbacks)

    def take(
        self, record: StepRecord, reading: StepReading, findings: Sequence[Finding], parts: KnownParts
    ) -> Decision:
        """Decide after a step; `known`: its parts, used only where something is wrong."""
        if not self._decides:
            reading = replace(reading, step=record.step)
        record.read(reading, self._skipped_before)
        record.findings = tuple(findings)
        if math.isfinite(record.loss):
            self.loss = record.loss
        if not record.asked_for:
            self._modifier.read(record)
            skips = self.skips.step(
                record.step,
                record.was_skipped_by,
                record.loss_scale,
                time=reading.time,
                buffers_lost=record.buffers_lost,
            )
            if skips.in_a_row:
                record.skips_in_a_row = skips.in_a_row
                self.cuts_scale, self.calms_scaler = (
                    self.cuts_scale or skips.cut_scale,
                    self.calms_scaler or skips.calm_scaler,
                )
                panel = {finding.kind for finding in findings}
                for event in skips.events:
                    if event.kind not in panel:  # else the panel has reported it of the same step
                        self._emit(event)
        if not self._decides:
            return NOTHING
        if self._batches is not None and (findings or record.was_skipped_by):
            self._report_batch(self._batches, record, parts)
        decision = self._decide(record, parts)
        stop = record.stop or self._stop_heard
        if stop is None and self._stop_on:
            stop = self._stop_rules.after_step(reading, skipped=record.was_skipped_by == "scaler")
        if stop is not None and not record.stopped_together:
            decision = replace(decision, ending=self.stopped(replace(stop, step=record.step)))
        return self._with_smaller_steps(decision, record) if self._adjusts else decision

    def hear(self, reading: StepReading) -> None:
        """Judge what the script has logged; a reason to stop holds before the next step."""
        self._stop_heard = self._stop_heard or self._stop_rules.after_step(reading)

    def loss_of(self, step: int) -> float:
        """Return the loss of a step, or the next finite one; NaN without one."""
        return self._losses.from_step(step)

    def look_for_stop(
        self, optimizer: Optimizer, capture: StepCapture, record: StepRecord, norm: Tensor | None, alone: bool
    ) -> int | None:
        """Skip the first step of a capture, and end the training after it, where a condition is met.

        Return the index of the condition. `alone`: no other rank has to end as well.
        """
        if record.stop is not None or capture.stepped[:1] != [id(optimizer)]:
            return None
        if self._stop is None and self._stop_heard is not None:
            self._stop = replace(self._stop_heard, step=record.step, before_step=True)
        elif self._stop is None:
            values = values_before_step(optimizer, capture, norm, self._stop_rules.looks_before)
            self._stop = self._stop_rules.before_step(record.step, values, is_guarded=self._modifier.guards)
        if self._stop is None:
            return None
        if alone:
            record.stop = self._stop
        if alone or self._modifier.guards:
            self._modifier.skip_next()
        return self._stop_on.index(self._stop.condition)

    def stop_over(self) -> None:
        """Start over for a script that continues after the training was ended."""
        self._stop = self._stop_heard = None
        self._is_stop_reported = False

    def stopped_together(self, place: StopPlace, step: int) -> TrainingDiverged:
        """Return the exception that all ranks end with; the reason is known on the rank where the condition was met."""
        condition_here = self._stop_on[place.condition] if place.condition < len(self._stop_on) else None
        condition = StopCondition("a condition of another rank") if condition_here is None else condition_here
        met = Stop(condition, step, f"the condition was met on rank {place.rank}", before_step=True)
        return self.stopped(self._stop or met)

    def stopped(self, stop: Stop) -> TrainingDiverged:
        """Return the exception that ends the training; report it once."""
        if not self._is_stop_reported:
            self._is_stop_reported = True
            self._emit(Finding.at(stop.facts, stop.step, Severity.INFO, remedies=EarlyStopping.remedies))
        return stop.error

    def by_hand(self, step: int) -> Decision | None:
        """Return a rollback that the script asked for; None without a good state."""
        good: tuple[GoodState, ...] = self._states.candidates(with_disk=True)
        if not good:
            return None
        policy = self._policy
        return Decision(
            "rollback",
            "The script called rollback().",
            step,
            preferred_state(policy, good).step,
            policy.easing_factor,
            policy.easing_steps,
        )

    def next_target(self, decision: Decision) -> int:
        """Return the step of the next older state, where that of the decision does not fit; -1: none."""
        return next_older_target(self._history, self._states.candidates(with_disk=True), decision.target)

    def retarget(self, decision: Decision, target: int) -> Decision:
        if decision.is_counted:
            *others, last = self._history.rollbacks
            # The losses after the first state do not apply to this one.
            self._history = replace(self._history, rollbacks=(*others, replace(last, to=target)), trained_losses=())
        return replace(decision, target=target)

    def nothing_fits(self, decision: Decision) -> None:
        """No state fits the training: leave only this trouble unanswered, as later states will fit."""
        if decision.is_counted:
            before = self._before
            self._history = replace(before, waiting=None, unanswered=before.unanswered + 1)

    def rolled_back(self, decision: Decision, step: int) -> None:
        self._losses.rolled_back(step)
        if decision.is_counted:
            self._history = mark_carried_out(self._history, step)
        if self._countdown is not None:
            self._countdown.restart()

    def not_restored(self) -> None:
        self._history = replace(self._history, gave_up=True)

    def _decide(self, record: StepRecord, known_parts: KnownParts) -> Decision:
        # The loss of a skipped step may belong to discarded weights; that of a broken batch is meaningless.
        if not (record.asked_for or record.was_skipped_by):
            self._losses.take(record.step, record.loss, record.place)
            if self._countdown is not None and math.isfinite(record.loss):
                # Where a row of high losses starts that may lead to a rollback, or ends without one.
                line = self._countdown.line(record.step, record.loss, record.place)
                if line and not self._history.gave_up and not self._history.ignores_level and self._has_level():
                    self._warn(line)
        before = self._history
        suspicious = record.findings or record.was_skipped_by or record.broken_taken or record.skips_in_a_row
        if not suspicious and before.waiting is None and before.limit is None and before.suspected is None:
            return NOTHING if record.asked_for else HEALTHY
        parts, broken = known_parts.alive(), record.is_broken
        place = next(
            (finding.place for finding in record.findings if finding.severity >= Severity.CRITICAL), record.place
        )
        proven_by = self._policy.healthy_after
        situation = Situation(
            record.step,
            record.findings,
            math.nan if record.asked_for else record.loss,
            record.skips_in_a_row,
            record.broken_taken and self._guard is not True,
            not (broken and self._policy.rolls_back and parts is not None) or weights_finite(parts),
            tuple(
                replace(state, around=self._losses.around(state.step, place, proven_by))
                for state in self._states.candidates(with_disk=self._policy.rolls_back)
            ),
            record.place,
            self._losses.last(record.step, self._policy.recovery_patience, place),
            self._losses.last(record.step - self._policy.recovery_patience, self._policy.recovery_patience, place),
            self._states.step_set_aside,
            self._has_level(),
        )
        self._history, decision = decide(self._policy, before, situation)
        trouble = decision.action != "nothing" or broken
        trouble = trouble or any(
            finding.kind in HARMFUL and finding.severity >= Severity.WARNING for finding in record.findings
        )
        counted = decision.rolls_back
        if counted:
            self._before = before
        elif decision.action == "give_up":
            overflowed_in_half = record.was_skipped_by == "scaler" or (broken and _in_half(parts))
            decision = self._give_up(decision, record.step, overflowed_in_half)
        elif decision.action != "nothing":
            decision = self._undo_rollback(decision, before, record.step)
        # On trial, all processes keep the state that may be wanted back; while trouble waits, steps prove nothing.
        unproven = self._history.on_trial or self._history.waiting is not None
        healthy = not (trouble or record.was_skipped_by or record.asked_for or unproven)
        return replace(decision, trouble=trouble, healthy=healthy, is_counted=counted)

    def _undo_rollback(self, decision: Decision, before: RollbackHistory, step: int) -> Decision:
        """Revert the last rollback where the weights from before it are wanted back: they were not to blame."""
        last = before.rollbacks[-1]
        self._losses.changed(last.at, last.to, self._losses.last(step, step - last.at, before.place))
        if decision.action == "data_changed":
            self._emit(data_changed_event(decision, step, rollbacks=self.rollbacks))
        if decision.ignores_level:
            self._emit(level_ignored_event(decision, step, rollbacks=self.rollbacks))
        if decision.undoes:
            return replace(decision, action="rollback", easing_steps=1)
        return replace(decision, release=True)

    def _give_up(self, decision: Decision, step: int, overflowed_in_half: bool) -> Decision:
        wanted = self._policy.on_give_up
        ends = decision.nothing_left if wanted is None else decision.final and wanted == "raise"
        origin = self._origin if self._origin is not None and self._origin.step >= decision.onset else None
        none_taken = not self._losses.has_taken
        remedies = what_to_change(origin, overflowed_in_half=overflowed_in_half, no_step_taken=none_taken)
        remedies = OF_SCALE if decision.is_no_better else remedies
        self._emit(give_up_event(decision, step, rollbacks=self.rollbacks, ends=ends, remedies=remedies))
        ending = None
        if ends:
            explanation = " ".join((decision.reason, *map(str, remedies), OR_GO_ON))
            ending = TrainingDiverged(f"Training stopped at step {step}: {explanation}", decision.reason.rstrip("."))
        if self._states.step_set_aside != decision.target:
            return replace(decision, ending=ending)
        last = self._history.rollbacks[-1]
        reason = f"The rollback to step {last.to} did not help."
        regained = decision.target - last.to
        return Decision(
            "rollback", reason, decision.onset, decision.target, easing_steps=1, undoes=regained, ending=ending
        )

    def _with_smaller_steps(self, decision: Decision, record: StepRecord) -> Decision:
        """Add what the options ask for at this step; a rollback replaces all of it."""
        policy = self._policy
        if decision.rolls_back or decision.ending is not None:
            return decision
        kinds = {finding.kind for finding in record.findings}
        reset = policy.reset_at_spike and not record.was_skipped_by and not kinds.isdisjoint(SPIKES)
        cut = policy.cut_learning_rate is not None and not self._was_cut and record.is_broken and not record.asked_for
        ahead = policy.act_ahead is not None and DivergenceAhead.kind in kinds
        self._was_cut = self._was_cut or cut
        return replace(decision, reset=reset, cut=cut, ahead=ahead) if reset or cut or ahead else decision

    def _report_batch(self, batches: BatchReport, record: StepRecord, known_parts: KnownParts) -> None:
        if record.was_skipped_by == "guard":
            parts = known_parts.alive()
            optimizers = () if parts is None else parts.optimizers
            batches.report(record.step, self._emit_batch_event, optimizers, record.batch_number)
            return
        spike = next(
            (finding for finding in record.findings if is_new_spike(finding) and finding.step == record.step), None
        )
        if spike is not None:
            batches.keep_spike(spike, self._emit, batches.inputs_of_step(record.batch_number))

    def _emit_batch_event(self, event: Finding) -> None:
        if event.kind == NAN_ORIGIN:
            self._origin = event
        self._emit(event)


def _in_half(parts: TrainingParts | None) -> bool:
    """Whether a training computes in fp16: its weights are, or its loss is scaled."""
    if parts is None:
        return False
    if parts.scaler is not None and parts.scaler.is_enabled():
        return True
    return any(parameter.dtype == torch.float16 for model in parts.models for parameter in Module.parameters(model))


def weights_finite(parts: TrainingParts) -> bool:
    """Whether all weights are finite; waits for the device.

    A frozen one may be infinite, as masks are.
    """
    with torch.no_grad():
        return all(
            is_finite(parameter, may_be_infinite=not parameter.requires_grad)
            for model in parts.models
            for parameter in Module.parameters(model)
        )
