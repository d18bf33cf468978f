"""Findings about rollbacks and giving up, and the countdown that announces a rollback."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.streak import ClassicWindow
from mlflow_stability.kinds.loss.divergence import DivergenceClassic
from mlflow_stability.kinds.reported.autopilot import CheckpointFailedFacts, DataChanged, DataChangedFacts
from mlflow_stability.kinds.reported.broken_steps import NanOriginFacts, NanSource
from mlflow_stability.kinds.reported.rollback import GaveUp, GiveUpFacts, HeldRate, RollbackFacts
from mlflow_stability.recovery.rollback_decisions import MAX_REVERTED
from mlflow_stability.recovery.rollback_state import ABSURD_RISE, Decision
from mlflow_stability.recovery.state.training_parts import SplitBy, StateSplit
from mlflow_stability.vocabulary.result import LOWER_RATE_3_TO_10_OR_WARM_UP, Action, Finding, Remedy, Severity
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy

IN_HALF = (Remedy(Action.TRAIN_IN_BF16_OR_SINGLE), Remedy(Action.LOWER_SCALE_OF_SCALER))
IN_GENERAL = (LOWER_RATE_3_TO_10_OR_WARM_UP, Remedy(Action.INSPECT_BATCHES_SINCE_ONSET))
FROM_THE_START = (
    Remedy(Action.CHECK_FIRST_BATCH),
    Remedy(Action.CHECK_OPERATIONS),
    Remedy(Action.CHECK_INITIAL_WEIGHTS),
)
"""Where no step was ever taken: the learning rate has changed nothing yet."""
OF_SCALE = (Remedy(Action.CHECK_LOSS_SCALE_OF_DATA),)
"""Where a loss that can be negative rose, and is still below that of the state that could be restored."""


def rollback_event(
    decision: Decision,
    step: int,
    *,
    seconds: float,
    rollbacks: int,
    learning_rate: float = math.nan,
    copies_left: int = 0,
    held: HeldRate | None = None,
    rate_of: str = "",
) -> Finding:
    """Make the finding of a rollback.

    `rollbacks`: their number including this one. `learning_rate`: that of the next step, if known, of the optimizer
    `rate_of`. `held`: its limit. `copies_left`: frozen copies of the model that are not in the restored state.
    """
    share = decision.lasting_share
    facts = RollbackFacts(
        decision.reason,
        decision.target,
        decision.onset,
        step - decision.target,
        seconds,
        rollbacks,
        steps_regained=decision.undoes or None,
        learning_rate=learning_rate if math.isfinite(learning_rate) else None,
        learning_rate_of=rate_of,
        learning_rate_share=share if share < 1 else None,
        easing_factor=decision.easing_factor,
        easing_steps=decision.easing_steps,
        held=held,
        copies_left=copies_left,
        finding="" if decision.finding is None else decision.finding.kind,
        finding_step=None if decision.finding is None else decision.finding.step,
    )
    remedies = (Remedy(Action.WATCH_LOSS), Remedy(Action.FIX_CAUSE_OF_FIRST_FINDING))
    return Finding.at(facts, step, Severity.INFO, remedies=remedies)


def data_changed_event(decision: Decision, step: int, *, rollbacks: int) -> Finding:
    facts = DataChangedFacts(
        decision.reason,
        decision.onset,
        rollbacks,
        decision.loss,
        decision.level,
        target=decision.target if decision.undoes else None,
    )
    return Finding.at(facts, step, Severity.WARNING, remedies=DataChanged.remedies)


SAVE_SHARDED = Remedy(Action.SAVE_SHARDS)
SAVE_SHARDED_OPTIMIZER = Remedy(Action.CONSOLIDATE_OPTIMIZER)


def no_checkpoints_event(split: StateSplit, step: int) -> Finding:
    remedies = (SAVE_SHARDED_OPTIMIZER if split.by is SplitBy.OPTIMIZER else SAVE_SHARDED,)
    return Finding.at(CheckpointFailedFacts(split_by=str(split)), step, Severity.WARNING, remedies=remedies)


def not_restored_event(decision: Decision, step: int, why: str, *, rollbacks: int, not_restored: str = "") -> Finding:
    """Make the finding of a rollback that failed; `not_restored`: parts that are in neither state."""
    facts = GiveUpFacts(
        GaveUp.NOT_RESTORED,
        decision.reason,
        decision.onset,
        rollbacks,
        target=decision.target,
        failure=why,
        not_restored=not_restored,
    )
    remedies = (Remedy(Action.RESTORE_BY_RUN), Remedy(Action.BUILD_MODELS_ONCE))
    return Finding.at(facts, step, Severity.CRITICAL, remedies=remedies)


def what_to_change(
    origin: Finding | None = None, *, overflowed_in_half: bool = False, no_step_taken: bool = False
) -> tuple[Remedy, ...]:
    """Return remedies for trouble that rollbacks do not end, most useful first.

    For a loss function it is not known whether the first non-finite value was an overflow.
    """
    facts = None if origin is None else origin.facts
    of_loss = isinstance(facts, NanOriginFacts) and facts.source is NanSource.LOSS
    half = IN_HALF if overflowed_in_half and (origin is None or of_loss) else ()
    general = FROM_THE_START if no_step_taken else IN_GENERAL
    return (*half, *(() if origin is None else origin.remedies), *general)


def level_ignored_event(decision: Decision, step: int, *, rollbacks: int) -> Finding:
    reason = (
        f"No further rollbacks for a loss that rises: {MAX_REVERTED} were reverted, because older weights gave no "
        "lower loss. This loss rises without its weights being worse. Non-finite values, and a loss "
        f"{ABSURD_RISE:,.0f} times its level, are still answered."
    )
    facts = GiveUpFacts(GaveUp.LEVEL_IGNORED, reason, decision.onset, rollbacks, final=False)
    remedies = (Remedy(Action.JUDGE_BY_GOAL),)
    return Finding.at(facts, step, Severity.INFO, remedies=remedies)


def give_up_event(
    decision: Decision, step: int, *, rollbacks: int, ends: bool = False, remedies: tuple[Remedy, ...] = IN_GENERAL
) -> Finding:
    """Make the finding of trouble without a rollback; `ends`: the training is stopped."""
    facts = GiveUpFacts(
        GaveUp.NO_ROLLBACK, decision.reason, decision.onset, rollbacks, final=decision.final, ended_training=ends
    )
    severity = Severity.CRITICAL if decision.final else Severity.WARNING
    return Finding.at(facts, step, severity, remedies=remedies)


ROWS_ALWAYS_ANNOUNCED = 4
"""Rows that are all announced; later ones only when their number has doubled: a noisy loss may cross a low threshold at
every tenth step."""


@dataclass(slots=True)
class _Losses:
    """Losses of one part of a training, such as a half of a GAN."""

    window: ClassicWindow = field(default_factory=ClassicWindow)
    is_announced: bool = False  # whether the present row of high losses was announced


class RollbackCountdown:
    """Announces a rollback at the first loss above `divergence_threshold`, and where the row ends without one."""

    def __init__(self, rule: DivergenceClassic) -> None:
        self._rule = rule
        self._losses: dict[str, _Losses] = {}
        self._rows = 0

    def line(self, step: int, loss: float, place: str = "") -> str:
        losses, rule = self._losses.setdefault(place, _Losses()), self._rule
        window, before = losses.window, losses.window.length
        mean = window.mean() if window.values else 0.0
        losses.window, _ = rule.step(window, Point("loss", place, step, loss))
        run = losses.window.length
        if run == 1 and before == 0:
            self._rows += 1
            losses.is_announced = self._rows <= ROWS_ALWAYS_ANNOUNCED or self._rows & (self._rows - 1) == 0
            if losses.is_announced:
                return (
                    f"loss {loss:.4g} at step {step}, {loss / mean:.2g} times its mean of {mean:.4g}: 1 of "
                    f"{rule.consecutive_steps} consecutive steps; rollback at {rule.consecutive_steps} "
                    f"(divergence_threshold={rule.divergence_threshold:g})."
                )
        if run == 0 and losses.is_announced:
            losses.is_announced = False
            if before < rule.consecutive_steps:
                return f"loss {loss:.4g} at step {step}, below the threshold again: no rollback."
        return ""

    def restart(self) -> None:
        self._losses.clear()


def countdown_of(policy: RollbackPolicy) -> RollbackCountdown | None:
    """Return the countdown of a policy; None where no row of high losses triggers a rollback."""
    threshold, steps = policy.divergence_threshold, policy.consecutive_divergence_steps
    if threshold is None or steps < 2 or not policy.rolls_back or DivergenceClassic.kind not in policy.rollback_on:
        return None
    return RollbackCountdown(DivergenceClassic(threshold, steps))
