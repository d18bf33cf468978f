"""Rollbacks that did not help are reverted; periodic events and small rises after a jump of the rate differ."""

from __future__ import annotations

import math
from statistics import median

import pytest
from findings import at_step
from recovery.test_rollback_decisions import LOSSES_AROUND, POLICY, divergence, states

from mlflow_stability.kinds.loss.divergence import SlowRiseFacts
from mlflow_stability.kinds.optimizer.learning_rate_jump import LearningRateJumpFacts
from mlflow_stability.recovery.rollback_decisions import decide
from mlflow_stability.recovery.rollback_state import Decision, GoodState, RollbackHistory, Situation
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy

NOISY = (1.2, 3.1, 2.2, 2.9, 1.7, 2.2, 2.4, 1.5, 2.0) * 5


def risen(step: int, loss: float, level: float, **evidence: float) -> Finding:
    """The finding of a loss that rose slowly."""
    return divergence(step, loss=loss, level=level, rise=loss / level - 1, **evidence)


def after_rollback(
    event: Finding,
    losses: list[float],
    left: float,
    around: tuple[float, ...] = LOSSES_AROUND,
    past: RollbackHistory | None = None,
) -> tuple[RollbackHistory, list[Decision]]:
    """What is decided after a rollback for this finding, where the restored weights give these losses."""
    step = event.step
    good = tuple(GoodState(step - before, median(around), around=around) for before in (200, 100))
    start = Situation(step, (event,), left, good=good, recent=(left,) * 10)
    past, decision = decide(POLICY, past or RollbackHistory(), start)
    decisions = [decision]
    for number, loss in enumerate(losses, 1):
        now = Situation(step + number, loss=loss, good=good, set_aside=step, recent=(loss,) * 10)
        past, decision = decide(POLICY, past, now)
        decisions += [decision] if decision.action != "nothing" else []
    return past, decisions


def test_a_slow_rise_whose_rollback_gave_no_lower_loss_is_undone_and_not_counted() -> None:
    past, (back, undone) = after_rollback(risen(500, 3.3, 2.2), [3.4, 3.2, 3.3] * 10, 3.3, NOISY)
    assert (back.action, undone.action, undone.target, undone.undoes) == ("rollback", "undo", 500, 100)
    assert undone.reason == (
        "The weights of step 400 give a loss of 3.31, those of step 500 gave 3.3: older weights do not lower the loss."
    )
    assert past.rollbacks[0].had_no_effect
    assert not past.ignores_level


def test_after_two_undone_rollbacks_a_moderately_higher_loss_causes_no_rollback() -> None:
    past, (_, changed) = after_rollback(risen(500, 3.3, 2.2), [3.6] * 30, 3.3)
    assert (changed.action, changed.ignores_level) == ("data_changed", False)
    past, (_, undone) = after_rollback(risen(900, 5.0, 3.3), [5.2] * 30, 5.0, past=past)
    assert undone.ignores_level
    assert past.ignores_level
    good = states(700, 800)
    assert decide(POLICY, past, Situation(1400, (risen(1400, 9.0, 5.0),), 9.0, good=good))[1] == Decision()
    absurd = Situation(1400, (risen(1400, 60.0, 0.05),), 60.0, good=good)
    assert decide(POLICY, past, absurd)[1].action == "rollback"
    without = Situation(1400, (divergence(1400, loss=9000.0, level=0.0),), 9000.0, good=good)
    assert decide(POLICY, past, without)[1] == Decision(), "of a level of zero, nothing is a thousand times as much"
    broken = Situation(1400, weights_finite=False, good=good)
    assert decide(POLICY, past, broken)[1].action == "rollback"


def test_losses_below_zero_are_compared_by_their_differences_after_a_rollback() -> None:
    event = divergence(500, loss=-20.0, level=-40.0)
    around = (-40.0, -41.0, -39.0, -40.5) * 10
    _, (_, changed) = after_rollback(event, [-21.0, -19.0, -20.0] * 10, -20.0, around)
    assert changed.action == "data_changed"
    _, decisions = after_rollback(event, [-40.0, -41.0, -39.0] * 10, -20.0, around)
    assert [decision.action for decision in decisions] == ["rollback"]


def test_a_rollback_that_lowers_the_loss_at_once_is_not_undone() -> None:
    noisy = [2.2, 2.9, 1.9, 2.4, 2.0, 2.6, 2.1, 2.3, 2.5, 2.2] * 5
    _, decisions = after_rollback(risen(500, 3.3, 2.2), noisy, 3.3)
    assert [decision.action for decision in decisions] == ["rollback"]


def test_a_rollback_to_an_early_state_with_the_high_losses_of_its_time_is_not_undone() -> None:
    early = tuple(2.4 - 0.03 * number for number in range(30))
    _, decisions = after_rollback(
        divergence(500, loss=2.1, level=0.5), [2.4 - 0.03 * number for number in range(60)], 2.1, early
    )
    assert [decision.action for decision in decisions] == ["rollback"]


def test_a_slow_rise_is_answered_by_a_state_from_before_it() -> None:
    good = (GoodState(200, 2.2, around=(2.2,) * 40), GoodState(400, 3.2, around=(3.2,) * 40))
    event = risen(500, 3.0, 2.2)
    assert decide(POLICY, RollbackHistory(), Situation(500, (event,), 3.0, good=good))[1].target == 200
    _, decision = decide(POLICY, RollbackHistory(), Situation(500, (event,), 3.0, good=good[1:]))
    assert (decision.action, decision.final, decision.is_no_better) == ("give_up", False, True)


@pytest.mark.parametrize(("late_share", "action"), [(None, "rollback"), (0.25, "rollback"), (0.24, "nothing")])
def test_a_slow_rise_that_was_over_long_before_it_was_found_causes_no_rollback(
    late_share: float | None, action: str
) -> None:
    facts = SlowRiseFacts(3.3, 2.2, 32, 0.5, late_share=late_share)
    event = at_step(500, "divergence", Severity.CRITICAL, facts=facts)
    past, decision = decide(POLICY, RollbackHistory(), Situation(500, (event,), 3.3, good=states(300, 400)))
    assert decision.action == action
    assert len(past.rollbacks) == (action == "rollback")


def test_a_rise_that_comes_back_at_equal_distances_is_answered_twice() -> None:
    past, actions = RollbackHistory(), []
    for step in (412, 815, 1212, 1620, 2013):
        event = divergence(step, loss=4.0, level=2.0, first_high=step - 11)
        good = states(step - 200, step - 100)
        past, decision = decide(POLICY, past, Situation(step, (event,), 4.0, good=good, recent=(4.0,) * 10))
        actions.append(decision.action)
        if len(actions) == 3:
            assert not decision.final
            assert "about every 400 steps (401, 804, 1201)" in decision.reason
    assert actions == ["rollback", "rollback", "give_up", "nothing", "nothing"]
    late = Situation(2300, (divergence(2300, loss=4.0, level=2.0, first_high=2290),), 4.0, good=states(2200))
    assert decide(POLICY, past, late)[1].action == "rollback", "this one came at another distance"


def test_after_giving_up_weights_that_are_not_finite_are_still_replaced() -> None:
    past = RollbackHistory(gave_up=True)
    _, decision = decide(POLICY, past, Situation(700, weights_finite=False, good=states(300, 600)))
    assert (decision.action, decision.target) == ("rollback", 600)
    past, decision = decide(POLICY, past, Situation(700, weights_finite=False))
    assert (decision.action, decision.final, decision.nothing_left) == ("give_up", True, True)
    assert decide(POLICY, past, Situation(701, weights_finite=False))[1] == Decision()


def test_a_hundred_skipped_steps_leave_nothing_to_lose() -> None:
    past = RollbackHistory(gave_up=True)
    assert decide(POLICY, past, Situation(799, skips_in_a_row=99))[1] == Decision()
    _, decision = decide(POLICY, past, Situation(800, skips_in_a_row=100))
    assert (decision.nothing_left, decision.onset) == (True, 701)
    never = RollbackPolicy(raise_after_skips=None)
    assert decide(never, past, Situation(800, skips_in_a_row=100))[1] == Decision()


def jump_to(rate: float) -> Finding:
    return at_step(400, "learning_rate_jump", Severity.WARNING, facts=LearningRateJumpFacts(rate, 0.001, 0.001))


JUMP = jump_to(0.1)


def after_a_jump(
    losses: list[float], jump: Finding = JUMP, found_at: int = 420, small: Finding | None = None
) -> list[Decision]:
    """A small rise after a jump of the learning rate at step 400."""
    good = (GoodState(300, 2.2, around=LOSSES_AROUND),)
    past, _ = decide(POLICY, RollbackHistory(), Situation(400, (jump,), 2.2, good=good))
    small = small or divergence(found_at, Severity.WARNING, loss=3.0, level=2.2, first_high=405)
    past, decision = decide(POLICY, past, Situation(found_at, (small,), 3.0, good=good))
    decisions = [decision]
    for number, loss in enumerate(losses, found_at + 1):
        past, decision = decide(POLICY, past, Situation(number, loss=loss, good=good, recent=(loss,) * 10))
        decisions.append(decision)
    return [item for item in decisions if item.action != "nothing"]


def test_a_small_rise_that_lasts_after_a_jump_of_the_learning_rate_is_answered() -> None:
    (decision, *_) = after_a_jump([3.0] * 70)
    assert (decision.action, decision.target, decision.onset) == ("rollback", 300, 400)
    assert decision.reason.startswith("Learning rate jumped from 0.001 to 0.1 at step 400; the loss rose from 2.2")


@pytest.mark.parametrize(
    ("losses", "factor"), [([3.0] * 40 + [2.3] * 200, 100.0), ([3.0] * 200, 5.0), ([2.1] * 200, 100.0)]
)
def test_a_temporary_rise_or_a_smaller_jump_causes_no_action(losses: list[float], factor: float) -> None:
    jump = jump_to(0.001 * factor)
    assert after_a_jump(losses, jump) == []


@pytest.mark.parametrize(("found_at", "is_answered"), [(600, True), (601, False)])
def test_a_rise_more_than_200_steps_after_the_jump_is_not_put_down_to_it(found_at: int, is_answered: bool) -> None:
    assert bool(after_a_jump([3.0] * 70, found_at=found_at)) is is_answered


def test_a_warning_that_names_no_level_is_not_put_down_to_a_jump() -> None:
    assert after_a_jump([3.0] * 70, small=divergence(420, Severity.WARNING, first_high=405)) == []


def test_the_limit_after_a_rollback_allows_for_what_the_state_gave_first() -> None:
    early = (5.0, 6.0, 6.5, 6.5, 6.0, 5.5, 5.0, 4.5, 4.0, 3.5, *(3.0 - number / 20 for number in range(23)))
    good = (GoodState(1, math.nan, around=early),)
    event = divergence(400, loss=2.6, level=1.2, onset=396)
    past, decision = decide(POLICY, RollbackHistory(), Situation(400, (event,), 2.6, good=good, recent=(2.6,) * 10))
    assert (decision.action, decision.target) == ("rollback", 1)
    for step, loss in enumerate(early, 401):
        past, decision = decide(POLICY, past, Situation(step, loss=loss, good=good, set_aside=400))
        assert decision == Decision(), step


def test_a_rollback_of_a_loss_that_turns_out_to_have_no_level_is_reverted_at_once() -> None:
    good = (GoodState(400, 2.2, around=LOSSES_AROUND),)
    event = divergence(500, loss=4.0, level=2.0, onset=490)
    past, _ = decide(POLICY, RollbackHistory(), Situation(500, (event,), 4.0, good=good, recent=(4.0,) * 10))
    now = Situation(501, loss=2.2, good=good, set_aside=500, has_level=False)
    past, decision = decide(POLICY, past, now)
    assert (decision.action, decision.target) == ("undo", 500)
    assert past.rollbacks[0].had_no_effect
    event = divergence(600, loss=4000.0, level=2.0, onset=590)
    past, decision = decide(POLICY, past, Situation(600, (event,), 4000.0, good=good, has_level=False))
    assert decision.action == "rollback"
    assert decide(POLICY, past, Situation(601, loss=2.2, good=good, set_aside=600, has_level=False))[1] == Decision()


def test_an_early_state_whose_loss_falls_more_slowly_than_the_first_time_stays() -> None:
    falling = tuple(0.1 * 0.8**step for step in range(32))
    slower = [0.1 * 0.93**step for step in range(40)]  # half of the learning rate
    _, decisions = after_rollback(divergence(500, loss=0.14, level=0.001), slower, 0.14, falling)
    assert [decision.action for decision in decisions] == ["rollback"]


def test_data_that_changed_is_recognised_also_where_the_loss_is_a_thousand_times_as_high() -> None:
    around = (0.03, 0.02, 0.05, 0.04) * 10
    _, decisions = after_rollback(divergence(500, loss=65.0, level=0.03), [100.0, 101.0, 99.0] * 10, 99.0, around)
    assert [decision.action for decision in decisions] == ["rollback", "data_changed"]


def test_without_patience_no_losses_after_a_rollback_are_compared() -> None:
    policy = RollbackPolicy(recovery_patience=0)
    good = (GoodState(400, 2.2, around=LOSSES_AROUND),)
    past, back = decide(policy, RollbackHistory(), Situation(500, (risen(500, 3.3, 2.2),), 3.3, good=good))
    assert back.action == "rollback"
    for step in range(501, 520):
        past, decision = decide(policy, past, Situation(step, loss=3.3, good=good, set_aside=500))
        assert decision == Decision()
    assert not past.on_trial
