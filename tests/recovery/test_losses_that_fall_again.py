"""A loss that jumped and falls back by itself is left alone; one that stops falling is answered."""

from __future__ import annotations

import pytest
from findings import at_step
from recovery.test_rollback_decisions import POLICY, divergence, states

from mlflow_stability.kinds.optimizer.learning_rate_jump import LearningRateJumpFacts
from mlflow_stability.recovery.rollback_decisions import decide
from mlflow_stability.recovery.rollback_reasons import LASTING_STEPS
from mlflow_stability.recovery.rollback_state import Decision, GoodState, RollbackHistory, Situation
from mlflow_stability.vocabulary.result import Severity

LEVEL, JUMP = 0.5, 500
FOUND = JUMP + 11
PATIENCE = POLICY.recovery_patience
NOTHING = (0, Decision())


def falling(to: float, share: float, steps: int = 150) -> list[float]:
    """Losses from the jump on: in each step this share of the way to a level is left."""
    return [to + (5.0 - to) * share**step for step in range(steps)]


def answers(
    losses: list[float],
    past: RollbackHistory | None = None,
    place: str = "",
    good: tuple[GoodState, ...] = states(300, 400),
) -> tuple[int, Decision] | None:
    """The first thing that is decided from the finding on, and when."""
    past = past or RollbackHistory()
    curve = [LEVEL] * JUMP + losses
    for step in range(FOUND, len(curve)):
        result = divergence(step, loss=curve[step], level=LEVEL, first_high=JUMP, z=9.0)
        situation = Situation(
            step,
            (result,) if step == FOUND else (),
            curve[step],
            good=good,
            place=place if step > FOUND else "",
            recent=tuple(curve[step + 1 - PATIENCE : step + 1]),
            earlier=tuple(curve[step + 1 - 2 * PATIENCE : step + 1 - PATIENCE]),
        )
        past, decision = decide(POLICY, past, situation)
        if decision != Decision():
            return step, decision
    assert past.waiting is None
    return None


@pytest.mark.parametrize("share", [0.7, 0.9, 0.95])
def test_a_loss_that_falls_back_to_its_level_is_left_alone(share: float) -> None:
    assert answers(falling(LEVEL, share)) is None


@pytest.mark.parametrize("share", [0.7, 0.9])
def test_a_loss_that_stops_falling_at_a_higher_level_is_answered_as_the_finding_it_is(share: float) -> None:
    step, decision = answers(falling(2.3, share)) or NOTHING
    assert (decision.action, decision.target, decision.onset) == ("rollback", 400, FOUND - POLICY.onset_lag)
    assert FOUND < step < FOUND + LASTING_STEPS
    assert decision.finding is not None


def test_a_loss_that_stops_falling_below_the_losses_of_all_older_states_is_left_alone() -> None:
    initial = GoodState(1, 2.9, initial=True, around=(2.9, 2.8, 2.7, 2.6))
    assert answers(falling(2.3, 0.9), good=(initial,)) is None
    step, decision = answers(falling(2.6, 0.9), good=(initial,)) or NOTHING
    assert (decision.action, decision.target) == ("rollback", 1)
    lower = GoodState(400, 0.5, around=(0.5,) * 4)
    step, decision = answers(falling(2.3, 0.9), good=(initial, lower)) or NOTHING
    assert (decision.action, decision.target) == ("rollback", 400)
    assert step > FOUND


def test_a_loss_that_falls_for_very_long_is_answered_in_the_end() -> None:
    endless = [1e9 * 0.95**step for step in range(200)]
    step, decision = answers(endless) or NOTHING
    assert (step, decision.action) == (FOUND + LASTING_STEPS + 1, "rollback")


@pytest.mark.parametrize(
    "losses", [[5.0 + 0.2 * step for step in range(100)], [5.0 * 1.1**step for step in range(100)]]
)
def test_a_loss_that_rises_on_is_answered_at_once(losses: list[float]) -> None:
    step, decision = answers(losses) or NOTHING
    assert (step, decision.action) == (FOUND, "rollback")


@pytest.mark.parametrize("losses", [[5.0] * 100, falling(LEVEL, 0.99)])
def test_a_loss_that_stays_high_or_hardly_falls_is_answered_once_that_can_be_seen(losses: list[float]) -> None:
    step, decision = answers(losses) or NOTHING
    assert (step, decision.action) == (JUMP + 2 * PATIENCE - 1, "rollback"), "the mean of ten beside that of ten before"


def test_a_loss_that_falls_after_a_jump_of_the_learning_rate_is_answered_at_once() -> None:
    jump = at_step(JUMP, "learning_rate_jump", Severity.WARNING, facts=LearningRateJumpFacts(0.1, 0.001, 0.001))
    past, _ = decide(POLICY, RollbackHistory(), Situation(JUMP, (jump,), LEVEL))
    step, decision = answers(falling(LEVEL, 0.9), past) or NOTHING
    assert (step, decision.action) == (FOUND, "rollback")


def test_losses_of_another_part_neither_end_the_wait_nor_are_waited_for_without_end() -> None:
    step, decision = answers(falling(LEVEL, 0.9), place="discriminator") or NOTHING
    assert (step, decision.action) == (FOUND + LASTING_STEPS + 1, "rollback")
