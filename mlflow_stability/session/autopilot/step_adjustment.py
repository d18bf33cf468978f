"""Smaller steps on request: moments reset at a spike, a learning rate that is cut or eased.

In: each step that was read. Out: orders, and between two steps what they say, with an event. Guarantees: nothing of it
unless an option of the policy asks for it; scheduler and script see only their own learning rates; tensors of the
optimizer keep their addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mlflow_stability.kinds.gradients.gradient_explosion import GradientExplosion
from mlflow_stability.kinds.loss.divergence_ahead import DivergenceAhead
from mlflow_stability.kinds.loss.loss_spike import LossSpike
from mlflow_stability.kinds.reported.autopilot import Smaller, SmallerSteps, SmallerStepsFacts
from mlflow_stability.recovery.easing import reset_moments
from mlflow_stability.recovery.rollback_policy import RollbackPolicy
from mlflow_stability.recovery.state import TrainingParts
from mlflow_stability.session.autopilot.ranks import Orders
from mlflow_stability.session.autopilot.step_modifier import StepModifier
from mlflow_stability.session.autopilot.step_record import StepRecord
from mlflow_stability.vocabulary.result import Finding, Severity

SPIKES = (LossSpike.kind, GradientExplosion.kind)
WARM_UP_FROM = 0.01
"""The share of the learning rate at which the warm-up after a reset begins, as published (arXiv 2501.06842)."""


class StepAdjustment:
    """What the options of one training ask for."""

    def __init__(self, policy: RollbackPolicy, modifier: StepModifier, emit: Callable[[Finding], None]) -> None:
        self._policy = policy
        self._modifier = modifier
        self._emit = emit
        self._was_cut = False
        self.is_asked_for = bool(policy.reset_at_spike or policy.cut_learning_rate or policy.act_ahead)
        """Whether any of these options is on."""

    def decide(self, record: StepRecord, orders: Orders) -> None:
        """Add to the orders what a step asks for; a rollback does all of this better."""
        policy = self._policy
        if orders.rollback is not None or orders.ending is not None:
            return
        kinds = {finding.kind for finding in record.findings}
        orders.reset = policy.reset_at_spike and not record.was_skipped_by and not kinds.isdisjoint(SPIKES)
        cuts = policy.cut_learning_rate is not None and not self._was_cut
        orders.cut = cuts and record.is_broken and not record.asked_for
        self._was_cut = self._was_cut or orders.cut
        orders.ahead = policy.act_ahead is not None and DivergenceAhead.kind in kinds

    def carry_out(self, orders: Orders, step: int, parts: TrainingParts | None, write: Callable[[], str]) -> None:
        """Do it after a step; `write` has a checkpoint written, and says so; empty where it could not."""
        if orders.cut:
            self._cut(step)
        if orders.reset and parts is not None:
            self._reset(step, parts)
        if orders.ahead:
            self._act_ahead(step, write)

    def _cut(self, step: int) -> None:
        share = self._policy.cut_learning_rate
        assert share is not None
        self._modifier.cut(step + 1, share)
        self._emit_facts(step, SmallerStepsFacts(Smaller.CUT, share))

    def _reset(self, step: int, parts: TrainingParts) -> None:
        steps = self._policy.reset_warm_up
        if not self._modifier.ease_in(step + 1, WARM_UP_FROM, steps, linear=True):
            return  # it is reduced already, by an earlier reset or a rollback
        count = sum(reset_moments(each) for each in parts.optimizers)
        self._emit_facts(step, SmallerStepsFacts(Smaller.RESET, WARM_UP_FROM, steps, count))

    def _act_ahead(self, step: int, write: Callable[[], str]) -> None:
        policy = self._policy
        facts = SmallerStepsFacts(Smaller.AHEAD, checkpoint=write(), value=str(policy.act_ahead))
        factor, steps = policy.easing_factor, policy.easing_steps
        if policy.act_ahead == "ease" and self._modifier.ease_in(step + 1, factor, steps):
            facts = replace(facts, factor=factor, steps=steps)
        if facts.checkpoint or facts.factor is not None:
            self._emit_facts(step, facts)

    def _emit_facts(self, step: int, facts: SmallerStepsFacts) -> None:
        self._emit(Finding.at(facts, step, Severity.INFO, remedies=SmallerSteps.remedies))
