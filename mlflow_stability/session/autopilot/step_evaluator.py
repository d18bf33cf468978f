"""Learns from each step that was read, and says what is to be done when it is over.

In: a step's numbers, what was done before it, and what the panel found. Out: orders. Guarantees: a step that the
script asked to skip counts for nothing; a training that stands still is told of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mlflow_stability.errors import TrainingDiverged
from mlflow_stability.kinds.reported.autopilot import EarlyStopping
from mlflow_stability.recovery.nan_origin import KIND as NAN_ORIGIN
from mlflow_stability.recovery.skipping import SkipCount, calm_loss_scaler, cut_loss_scale
from mlflow_stability.recovery.stop_conditions import Stop, StopRules
from mlflow_stability.session.autopilot.autopilot_config import AutopilotConfig
from mlflow_stability.session.autopilot.known_parts import KnownParts
from mlflow_stability.session.autopilot.ranks import Orders
from mlflow_stability.session.autopilot.rollback_controller import RollbackController
from mlflow_stability.session.autopilot.step_adjustment import StepAdjustment
from mlflow_stability.session.autopilot.step_modifier import StepModifier
from mlflow_stability.session.autopilot.step_record import StepRecord
from mlflow_stability.session.broken_batch.batch_report import BatchReport
from mlflow_stability.session.broken_batch.spike_batches import is_new_spike
from mlflow_stability.vocabulary.measured import StepReading
from mlflow_stability.vocabulary.result import Finding, Severity


class StepEvaluator:
    """Turns the readings of one training into orders."""

    def __init__(
        self,
        plan: AutopilotConfig,
        modifier: StepModifier,
        controller: RollbackController,
        batches: BatchReport | None,
        emit: Callable[[Finding], None],
        decides: bool,
        adjustment: StepAdjustment | None = None,
    ) -> None:
        self._plan = plan
        self._modifier = modifier
        self._controller = controller
        self._batches = batches
        self._emit = emit
        self._decides = decides
        """Whether this process decides; of several that train together only one does."""
        self._adjustment = adjustment
        self._skips = SkipCount(plan.policy)
        self._skipped_before: dict[str, float] = {}
        self._cut = self._calm = False
        self.loss = math.nan
        """The last finite loss."""
        self.stop_rules = StopRules(plan.stop_on)
        self.stop_heard: Stop | None = None
        """What the script has logged that is a reason to stop."""
        self._stop_told = False

    def evaluate(
        self, record: StepRecord, reading: StepReading, findings: Sequence[Finding], known: KnownParts
    ) -> Orders:
        """Take in a step; `known`: what it was a step of, looked at only where something is wrong."""
        reading = reading if self._decides else replace(reading, step=record.step)
        record.read(reading, self._skipped_before)
        record.findings = tuple(findings)
        if math.isfinite(record.loss):
            self.loss = record.loss
        if not record.asked_for:
            self._modifier.read(record)
            self._count_skip(record, reading.time)
        if not self._decides:
            return Orders()
        if record.was_skipped_by == "guard" and self._batches is not None:
            parts = known.alive()
            optimizers = () if parts is None else parts.optimizers
            self._batches.report(record.step, self._emit_batch_event, optimizers, record.batch_number)
        elif findings and self._batches is not None:
            spike = next((each for each in findings if is_new_spike(each) and each.step == record.step), None)
            if spike is not None:
                self._batches.keep_spike(spike, self._emit, self._batches.inputs_of_step(record.batch_number))
        orders = self._controller.orders_after(record, known)
        by_scaler = record.was_skipped_by == "scaler"
        stop = record.stop or self.stop_heard or self.stop_rules.after_step(reading, skipped=by_scaler)
        if stop is not None and not record.stopped_together:
            orders.ending = self.stopped(replace(stop, step=record.step))
        if self._adjustment is not None:
            self._adjustment.decide(record, orders)
        return orders

    def hear(self, reading: StepReading) -> None:
        """Take in what the script has logged; what it is a reason to stop for holds before the next step."""
        self.stop_heard = self.stop_heard or self.stop_rules.after_step(reading)

    def stop_before(self, step: int, values: Mapping[str, float]) -> Stop | None:
        """What ends the training before this step is taken."""
        heard = None if self.stop_heard is None else replace(self.stop_heard, step=step, before_step=True)
        return heard or self.stop_rules.before_step(step, values, is_guarded=self._modifier.guards)

    def stop_over(self) -> None:
        """The training was ended; a script that trains on is judged anew."""
        self.stop_heard, self._stop_told = None, False

    def stopped(self, stop: Stop) -> TrainingDiverged:
        """What ends the training; tells of it once."""
        if self._stop_told:
            return stop.error
        self._stop_told = True
        self._emit(Finding.at(stop.facts, stop.step, Severity.INFO, remedies=EarlyStopping.remedies))
        return stop.error

    def _emit_batch_event(self, event: Finding) -> None:
        if event.kind == NAN_ORIGIN:
            self._controller.origin = event
        self._emit(event)

    def settle_scale(self, scaler: Any) -> None:
        """Runs between the end of a step and the next `scale`: bring down a loss scale that is too high."""
        policy = self._plan.policy
        if self._cut:
            cut_loss_scale(scaler, policy.cut_factor, policy.smallest_scale)
        if self._calm:
            calm_loss_scaler(scaler)
        self._cut = self._calm = False

    def forget_row(self) -> None:
        """The training was rolled back: what is skipped now is a new row."""
        self._skips.forget_row()

    def _count_skip(self, record: StepRecord, time: float) -> None:
        who: Any = record.was_skipped_by
        row = self._skips.step(record.step, who, record.loss_scale, time=time, buffers_lost=record.buffers_lost)
        self._cut, self._calm = self._cut or row.cut_scale, self._calm or row.calm_scaler
        known = {finding.kind for finding in record.findings} if row.events else ()
        for event in row.events:
            if event.kind not in known:  # else the panel has reported it of the same step
                self._emit(event)
        record.skips_in_a_row = row.in_a_row
