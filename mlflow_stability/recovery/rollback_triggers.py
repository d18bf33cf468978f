"""Detect trouble at the end of a step that is worth a rollback. Pure.

Periodic rises of the loss, and those after a learning rate jump, are recognised here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean

from mlflow_stability.kinds.loss.divergence import Divergence, DivergenceFacts, SizeFacts, SlowRiseFacts
from mlflow_stability.kinds.loss.divergence_early import StartFacts
from mlflow_stability.kinds.optimizer.learning_rate_jump import LearningRateJumpFacts
from mlflow_stability.recovery.restored_losses import midpoint
from mlflow_stability.recovery.rollback_state import RateJump, RollbackHistory, Situation, SuspectedRise
from mlflow_stability.vocabulary.facts import LossRiseFacts
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy

REMEMBERED_ONSETS = 3
"""Rises of the loss whose distances are compared."""
SAME_DISTANCE = 0.05
"""Distances are equal within this share, or within the lag between onset and finding."""
ABSURD_RISE = 1000.0
"""Ratio of the loss to its level that always triggers a rollback."""
SHORTEST_PERIOD = 100
"""Rises that return sooner are the same trouble: the restored state did not hold."""
JUMP_FACTOR = 10.0
"""Ratio of a learning rate to its highest value before that makes it suspect."""
JUMP_STEPS = 200
"""Number of steps after a learning rate jump in which a rise of the loss belongs to it."""
LASTING_STEPS = 64
"""Number of steps that a rise after a learning rate jump has to last if it is only a warning."""


@dataclass(frozen=True, slots=True)
class RiseAfterJumpFacts(LossRiseFacts):
    """A loss that rose after a jump of the learning rate and is still high."""

    jump: RateJump
    """The jump."""

    def sentence(self, _step: int, _unit: str = "step", /) -> str:
        """``Learning rate jumped from 0.001 to 0.1 at step 400; the loss rose from 1.2 and is still 9, 64 steps …``"""
        return (
            f"Learning rate jumped from {self.jump.before:.4g} to {self.jump.after:.4g} at step {self.jump.step}; the "
            f"loss rose from {self.baseline:.4g} and is still {self.value:.4g}, {LASTING_STEPS} steps after it was "
            "found to be high."
        )


@dataclass(frozen=True, slots=True)
class Trouble:
    onset: int
    """Earliest step of it: the restored state must be older."""
    reason: str
    urgent: bool = False
    """It does not wait: no state can settle with it."""
    event: Finding | None = None
    skipped: bool = False
    """All its steps were skipped, so the weights are those from before it."""
    may_repeat: bool = False
    """The same state may be restored once more."""
    one_step: bool = False
    """One broken step was taken: its onset is exact, and it says nothing about the learning rate."""
    did_not_hold: bool = False
    """The restored state gives high losses again."""
    nonfinite: bool = False
    """Weights are not finite."""

    @property
    def first_seen(self) -> int:
        """Return the first high loss, where the finding names it."""
        facts = self.event.facts if self.event is not None else None
        first = facts.first_high if isinstance(facts, DivergenceFacts | SizeFacts) else None
        return self.onset if first is None else first

    @property
    def of_level(self) -> bool:
        """Whether it is only a higher loss."""
        return self.event is not None

    @property
    def is_absurd(self) -> bool:
        """Whether the loss matters whatever it measures."""
        return self.event is not None and rise_of(self.event) >= ABSURD_RISE

    @property
    def is_slow(self) -> bool:
        """Whether the loss rose over many steps, so that states shortly before the finding may be no better."""
        return self.event is not None and isinstance(self.event.facts, SlowRiseFacts)


def trouble_at(policy: RollbackPolicy, past: RollbackHistory, now: Situation) -> Trouble | None:
    """Return the worst trouble, or None."""
    if not now.weights_finite and not now.broken_step_taken:
        onset = now.step - now.skips_in_a_row
        return Trouble(onset, f"Non-finite weights after step {now.step}.", urgent=True, nonfinite=True)
    if now.broken_step_taken:
        reason = f"Step {now.step} was taken with non-finite loss or gradients."
        return Trouble(now.step, reason, urgent=True, one_step=True, nonfinite=not now.weights_finite)
    if now.skips_in_a_row and now.skips_in_a_row % policy.rollback_after_skips == 0:
        onset = now.step - now.skips_in_a_row + 1
        return Trouble(
            onset, f"{now.skips_in_a_row} consecutive steps skipped since step {onset}.", urgent=True, skipped=True
        )
    reasons = [event for event in now.events if _is_reason(policy, past, event)]
    if reasons:
        onset = min(_onset_of(event, policy) for event in reasons)
        return Trouble(onset, reasons[0].message, event=reasons[0])
    if past.limit is not None and past.losses and len(past.losses) == policy.recovery_patience:
        mean = fmean(past.losses)
        if mean > past.limit:
            reason = f"Diverged again after the rollback: mean loss of {len(past.losses)} steps is {mean:.4g}."
            again = past.rollbacks[-1].again
            return Trouble(past.rollbacks[-1].at + 1, reason, may_repeat=not again, did_not_hold=True)
    if past.waiting is not None:
        return Trouble(past.waiting, past.why_waiting)
    return _lasting_rise(past, now)


def _is_reason(policy: RollbackPolicy, past: RollbackHistory, event: Finding) -> bool:
    if event.kind not in policy.rollback_on or event.severity < policy.rollback_at:
        return False
    if not past.ignores_level or rise_of(event) >= ABSURD_RISE:
        return True
    return not isinstance(event.facts, LossRiseFacts | SizeFacts)


def _onset_of(event: Finding, policy: RollbackPolicy) -> int:
    facts = event.facts
    onset = facts.onset if isinstance(facts, DivergenceFacts | StartFacts) else None
    return event.step - policy.onset_lag if onset is None else onset


def rise_of(event: Finding) -> float:
    """Return the loss as a multiple of its level; NaN if unknown."""
    loss, level = levels_of(event)
    return abs(loss / level) if level else math.nan


def levels_of(event: Finding | None) -> tuple[float, float]:
    """Return loss and level of a finding, or its size in the first steps; NaN if unknown."""
    facts = event.facts if event is not None else None
    if isinstance(facts, LossRiseFacts):
        return facts.value, facts.baseline
    return (facts.loss, facts.early) if isinstance(facts, SizeFacts) else (math.nan, math.nan)


def with_findings(policy: RollbackPolicy, past: RollbackHistory, now: Situation) -> RollbackHistory:
    """Record findings of this step that may matter later."""
    for event in now.events:
        facts = event.facts
        if isinstance(facts, LearningRateJumpFacts) and facts.found_first is None:
            jump_now = RateJump(event.step, facts.highest_before, facts.learning_rate)
            past = replace(past, jump=jump_now, suspected=None)
    jump = past.jump
    if jump is None or past.ignores_level or not jump.after >= JUMP_FACTOR * jump.before:
        return past
    for event in now.events:
        loss, level = levels_of(event)
        fits = event.kind in policy.rollback_on and Severity.WARNING <= event.severity < policy.rollback_at
        soon = 0 <= event.step - jump.step <= JUMP_STEPS and past.suspected is None
        if fits and soon and loss > level:
            past = replace(past, suspected=SuspectedRise(jump, event.step, level, loss, event.place))
    return past


def _lasting_rise(past: RollbackHistory, now: Situation) -> Trouble | None:
    """Return a rise after a learning rate jump that has lasted."""
    rise = past.suspected
    if rise is None or not _is_due(rise, now) or fmean(now.recent) < midpoint(rise.level, rise.loss):
        return None
    facts = RiseAfterJumpFacts(fmean(now.recent), rise.level, rise.jump)
    event = Finding.at(facts, now.step, Severity.WARNING, kind=Divergence.kind, place=rise.place)
    return Trouble(rise.jump.step, event.message, event=event)


def _is_due(rise: SuspectedRise, now: Situation) -> bool:
    return now.step >= rise.since + LASTING_STEPS and now.place == rise.place and bool(now.recent)


def without_old_rise(past: RollbackHistory, now: Situation) -> RollbackHistory:
    """Drop a suspicion that was decided at this step, or never can be."""
    rise = past.suspected
    if rise is not None and (_is_due(rise, now) or now.step > rise.since + 2 * LASTING_STEPS):
        return replace(past, suspected=None)
    return past


def period_of(policy: RollbackPolicy, past: RollbackHistory, trouble: Trouble) -> int | None:
    """Return the distance at which rises return although two rollbacks answered them, or None."""
    onsets = (*past.onsets, trouble.first_seen)[-REMEMBERED_ONSETS:]
    if len(onsets) < REMEMBERED_ONSETS or len([rollback for rollback in past.rollbacks if rollback.of_level]) < 2:
        return None
    first, second = onsets[1] - onsets[0], onsets[2] - onsets[1]
    slack = max(policy.onset_lag, SAME_DISTANCE * first)
    if min(first, second) < SHORTEST_PERIOD or abs(second - first) > slack:
        return None
    return past.period or round((first + second) / 2)
