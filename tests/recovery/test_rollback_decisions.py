from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from findings import at_step
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.kinds.loss.divergence_early import StartFacts
from mlflow_stability.recovery.rollback_decisions import decide, mark_carried_out
from mlflow_stability.recovery.rollback_reasons import next_older_target
from mlflow_stability.recovery.rollback_state import Decision, GoodState, RollbackHistory, Situation
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy

POLICY = RollbackPolicy()


def divergence(step: int, severity: Severity = Severity.CRITICAL, **evidence: float) -> Finding:
    return at_step(step, "divergence", severity, f"loss stood high at step {step}.", evidence=evidence)


def states(*steps: int) -> tuple[GoodState, ...]:
    return tuple(GoodState(step, 3.0 - step / 1000) for step in steps)


def test_a_healthy_training_needs_no_action() -> None:
    past, decision = decide(POLICY, RollbackHistory(), Situation(100, good=states(50)))
    assert decision == Decision()
    assert past == RollbackHistory()


def test_a_divergence_leads_to_the_newest_state_that_is_old_enough() -> None:
    situation = Situation(500, (divergence(500, onset=480),), good=states(300, 400, 470, 485))
    past, decision = decide(POLICY, RollbackHistory(), situation)
    assert (decision.action, decision.onset, decision.target) == ("rollback", 480, 400)
    assert (decision.easing_factor, decision.easing_steps) == (0.5, 200)
    assert "step 500" in decision.reason
    assert [(rollback.at, rollback.to) for rollback in past.rollbacks] == [(500, 400)]


def test_the_onset_lies_before_the_finding_where_the_finding_does_not_say() -> None:
    _, decision = decide(POLICY, RollbackHistory(), Situation(500, (divergence(500),), good=states(450)))
    assert decision.onset == 484


def test_a_state_after_the_onset_is_never_restored() -> None:
    situation = Situation(500, (divergence(500, onset=480),), good=states(480, 490))
    _, decision = decide(POLICY, RollbackHistory(), situation)
    assert decision.action == "give_up"
    assert not decision.final


def test_if_no_state_is_old_enough_the_oldest_before_the_onset_is_used() -> None:
    situation = Situation(500, (divergence(500, onset=480),), good=states(460, 470))
    assert decide(POLICY, RollbackHistory(), situation)[1].target == 460


def test_the_best_state_is_the_one_of_the_lowest_loss() -> None:
    good = (GoodState(300, 1.0), GoodState(350, 2.0), GoodState(475, 0.1))
    situation = Situation(500, (divergence(500, onset=480),), good=good)
    assert decide(RollbackPolicy(rollback_target="best"), RollbackHistory(), situation)[1].target == 300


@pytest.mark.parametrize(
    "event", [divergence(500, Severity.WARNING), at_step(500, "loss_spike", Severity.CRITICAL, "")]
)
def test_mild_and_other_findings_cause_no_rollback(event: Finding) -> None:
    assert decide(POLICY, RollbackHistory(), Situation(500, (event,), good=states(300)))[1] == Decision()


def test_a_repeated_problem_rewinds_further_and_eases_more() -> None:
    good = states(100, 200, 300, 400)
    past = RollbackHistory()
    targets, factors, easing_steps = [], [], []
    for step in (500, 540, 580):
        past, decision = decide(POLICY, past, Situation(step, (divergence(step, onset=step - 20),), good=good))
        targets.append(decision.target)
        factors.append(decision.easing_factor)
        easing_steps.append(decision.easing_steps)
    assert targets == [400, 300, 200]
    assert factors == [0.5, 0.25, 0.125]
    assert easing_steps == [200, 400, 800]
    past, decision = decide(POLICY, past, Situation(620, (divergence(620),), good=good))
    assert (decision.action, decision.final) == ("give_up", True)
    assert "3 rollbacks did not help" in decision.reason
    assert not decision.nothing_left
    assert decide(POLICY, past, Situation(660, (divergence(660),), good=good)) == (past, Decision())


def test_states_of_an_abandoned_course_are_not_restored() -> None:
    past, _ = decide(POLICY, RollbackHistory(), Situation(500, (divergence(500, onset=480),), good=states(400)))
    late = Situation(2000, (divergence(2000),), good=states(400, 450))
    assert decide(POLICY, past, late)[1].target == 400


def test_a_later_healthy_state_preserves_the_progress_since_the_last_rollback() -> None:
    past, _ = decide(POLICY, RollbackHistory(), Situation(500, (divergence(500, onset=480),), good=states(300, 400)))
    again = Situation(900, (divergence(900, onset=890),), good=states(300, 400, 600, 700, 850))
    assert decide(POLICY, past, again)[1].target == 700  # 80 steps before, for it is the second time


@pytest.mark.parametrize(
    ("situation", "onset", "target"),
    [
        (Situation(300, weights_finite=False, good=states(100, 250)), 300, 250),
        (Situation(300, skips_in_a_row=25, good=states(100, 250)), 276, 100),
        (Situation(300, broken_step_taken=True, good=states(100, 299)), 300, 299),
        (Situation(300, broken_step_taken=True, weights_finite=False, good=states(100, 299)), 300, 299),
    ],
)
def test_broken_weights_broken_steps_and_consecutive_skips_cause_a_rollback_at_once(
    situation: Situation, onset: int, target: int
) -> None:
    _, decision = decide(POLICY, RollbackHistory(), situation)
    assert (decision.action, decision.onset, decision.target) == ("rollback", onset, target)


def test_no_older_state_is_tried_if_a_good_state_breaks_at_its_first_step() -> None:
    past, _ = decide(POLICY, RollbackHistory(), Situation(300, skips_in_a_row=25, good=states(100, 200)))
    past, decision = decide(POLICY, past, Situation(325, skips_in_a_row=25, good=states(100, 200)))
    assert (decision.action, decision.final) == ("give_up", True)
    assert "not in the weights" in decision.reason


def test_an_older_state_is_tried_if_a_good_state_took_a_step_before_it_broke() -> None:
    past, _ = decide(POLICY, RollbackHistory(), Situation(300, skips_in_a_row=25, good=states(100, 200)))
    _, decision = decide(POLICY, past, Situation(326, skips_in_a_row=25, good=states(100, 200)))
    assert (decision.action, decision.target) == ("rollback", 100)


def test_giving_up_names_the_weights_that_a_rollback_without_effect_replaced() -> None:
    past, _ = decide(POLICY, RollbackHistory(), Situation(300, skips_in_a_row=25, good=states(100, 200)))
    _, decision = decide(POLICY, past, Situation(325, skips_in_a_row=25, good=states(100, 200)))
    assert decision.target == 300


def test_weights_that_diverged_are_not_named_when_it_gives_up() -> None:
    past, _ = decide(POLICY, RollbackHistory(), Situation(300, (divergence(300, onset=290),), good=states(100, 200)))
    _, decision = decide(POLICY, past, Situation(325, skips_in_a_row=25, good=states(100, 200)))
    assert (decision.action, decision.final, decision.target) == ("give_up", True, -1)


@pytest.mark.parametrize(
    ("good", "reason"),
    [((), "No finite state is left to restore."), (states(100), "1 rollback did not help.")],
    ids=["no state", "no further rollback"],
)
def test_non_finite_weights_that_cannot_be_replaced_end_the_training_with_the_reason(
    good: tuple[GoodState, ...], reason: str
) -> None:
    policy = RollbackPolicy(max_rollbacks=1, max_rollbacks_in_all=1)
    past, _ = decide(policy, RollbackHistory(), Situation(300, weights_finite=False, good=states(100)))
    _, decision = decide(policy, past, Situation(900, weights_finite=False, good=good))
    assert (decision.action, decision.nothing_left) == ("give_up", True)
    assert decision.reason.endswith(reason)


def test_a_rollback_that_was_carried_out_a_step_later_is_recorded_at_that_step() -> None:
    past, _ = decide(POLICY, RollbackHistory(), Situation(500, (divergence(500, onset=480),), good=states(400)))
    assert [rollback.at for rollback in mark_carried_out(past, 501).rollbacks] == [501]
    assert mark_carried_out(RollbackHistory(), 501) == RollbackHistory()


def test_a_state_that_does_not_fit_is_followed_by_the_next_older_one_and_never_by_the_initial_one() -> None:
    good = (GoodState(0, 3.0, initial=True), *states(100, 200, 300))
    past, _ = decide(POLICY, RollbackHistory(), Situation(500, (divergence(500, onset=480),), good=good))
    assert [next_older_target(past, good, step) for step in (300, 200, 100)] == [200, 100, -1]


def test_the_next_older_state_was_not_left_behind_by_an_earlier_rollback() -> None:
    past, decision = decide(POLICY, RollbackHistory(), Situation(250, (divergence(250, onset=190),), good=states(100)))
    assert decision.target == 100
    good = states(100, 200, 300, 900)
    past, decision = decide(POLICY, past, Situation(1000, (divergence(1000, onset=980),), good=good))
    assert decision.target == 900
    assert [next_older_target(past, good, step) for step in (900, 300)] == [300, 100]


def test_a_few_skips_cause_no_rollback() -> None:
    assert decide(POLICY, RollbackHistory(), Situation(300, skips_in_a_row=24, good=states(100)))[1] == Decision()


def test_a_finding_right_after_a_rollback_waits_until_the_state_has_settled() -> None:
    past, _ = decide(POLICY, RollbackHistory(), Situation(500, (divergence(500),), good=states(300, 400)))
    past, decision = decide(POLICY, past, Situation(505, (divergence(505),), good=states(300, 400)))
    assert decision == Decision()
    past, decision = decide(POLICY, past, Situation(509, good=states(300, 400)))
    assert decision == Decision()
    past, decision = decide(POLICY, past, Situation(510, good=states(300, 400)))
    assert (decision.action, decision.target) == ("rollback", 300)


def after_a_return(losses: list[float]) -> Decision:
    event = divergence(500, loss=4.0, level=2.0)
    good = (GoodState(300, 2.5), GoodState(400, 2.2))
    past, decision = decide(POLICY, RollbackHistory(), Situation(500, (event,), 4.0, good=good))
    for step, loss in enumerate(losses, 501):
        past, decision = decide(POLICY, past, Situation(step, loss=loss, good=good))
        if decision.action != "nothing":
            break
    return decision


def test_a_restored_state_with_high_losses_is_a_problem_though_detectors_start_again() -> None:
    decision = after_a_return([2.2] * 7 + [3.6] * 30)
    assert (decision.action, decision.target, decision.onset) == ("rollback", 400, 501)
    assert "after the rollback: mean loss of 10 steps is 3." in decision.reason


def test_a_state_that_diverges_again_is_retried_once_and_then_an_older_one_is_used() -> None:
    good = (GoodState(200, 2.5), GoodState(300, 2.5), GoodState(400, 2.2))
    past, decision = decide(
        POLICY, RollbackHistory(), Situation(500, (divergence(500, loss=4.0, level=2.0),), 4.0, good=good)
    )
    decisions = [decision]
    for step in range(501, 600):
        past, decision = decide(POLICY, past, Situation(step, loss=3.8, good=good))
        decisions += [decision] if decision.action != "nothing" else []
    assert [item.target for item in decisions] == [400, 400, 300, -1]
    assert [item.easing_factor for item in decisions[:3]] == [0.5, 0.5, 0.25]
    assert decisions[3].final


@pytest.mark.parametrize("losses", [[2.2] * 50, [2.2, 3.9] * 50, [2.2] * 110 + [9.0] * 50, [2.2, float("nan")] * 50])
def test_a_restored_state_with_acceptable_losses_needs_no_action(losses: list[float]) -> None:
    assert after_a_return(losses) == Decision()


def test_without_a_good_state_it_gives_up_on_one_problem_but_not_on_the_next() -> None:
    past, decision = decide(POLICY, RollbackHistory(), Situation(30, (divergence(30),)))
    assert (decision.action, decision.final) == ("give_up", False)
    assert "No good state" in decision.reason
    assert decide(POLICY, past, Situation(900, (divergence(900),), good=states(500)))[1].action == "rollback"


def test_a_policy_without_rollback_never_rolls_back() -> None:
    situation = Situation(300, (divergence(300),), weights_finite=False, good=states(100))
    assert decide(RollbackPolicy(max_rollbacks=0), RollbackHistory(), situation)[1] == Decision()


def hopeless(policy: RollbackPolicy, healthy: int, trouble: Callable[[int], Situation]) -> list[Decision]:
    """A training that breaks again this number of steps after each rollback, whatever is done."""
    past, decisions, step = RollbackHistory(), [], 1000
    for number in range(100):
        situation = trouble(step)
        past, decision = decide(policy, past, situation)
        decisions.append(decision)
        step += round(healthy * (1 + 0.3 * (number % 5)))  # at equal distances it would be a periodic event
    return decisions


@given(
    healthy=st.integers(1, 5000),
    rewind=st.integers(0, 200),
    most=st.integers(1, 5),
    kind=st.sampled_from(["divergence", "weights", "skips", "taken"]),
)
def test_a_learning_rate_that_is_simply_too_high_ends_with_giving_up(
    healthy: int, rewind: int, most: int, kind: str
) -> None:
    policy = RollbackPolicy(rewind=rewind, max_rollbacks=most, recovery_patience=0)

    def trouble(step: int) -> Situation:
        good = states(*range(max(0, step - 1000), step, 100))
        if kind == "divergence":
            return Situation(step, (divergence(step),), good=good)
        return Situation(
            step,
            skips_in_a_row=25 if kind == "skips" else 0,
            weights_finite=kind != "weights",
            broken_step_taken=kind == "taken",
            good=good,
        )

    decisions = hopeless(policy, healthy, trouble)
    back = [decision for decision in decisions if decision.action == "rollback"]
    (end,) = [number for number, item in enumerate(decisions) if item.final]
    assert decisions[end].action == "give_up"
    assert all(decision.action != "nothing" for decision in decisions[:end])
    assert all(decision == Decision() for decision in decisions[end + 1 :])
    bounded = 2.2 * healthy <= policy.forgiven_after and kind != "weights"
    assert len(back) <= (most if bounded else policy.max_rollbacks_in_all)
    assert decisions[end].nothing_left == (kind == "weights"), "only weights that are not finite have nothing to lose"


def left(past: RollbackHistory, step: int) -> bool:
    return any(rollback.to < step <= rollback.at for rollback in past.rollbacks)


SITUATIONS = st.lists(
    st.tuples(
        st.integers(1, 400),
        st.booleans(),
        st.booleans(),
        st.sampled_from([0, 1, 25, 50]),
        st.lists(st.integers(0, 3000), max_size=6),
        st.integers(0, 600),
    ),
    max_size=40,
)


@given(SITUATIONS, st.integers(0, 100), st.sampled_from(["newest", "best"]))
def test_rollbacks_are_bounded_and_lead_to_states_before_the_problem_for_any_history(
    numbers: list[tuple[int, bool, bool, int, list[int], int]], rewind: int, select: str
) -> None:
    policy = RollbackPolicy(rewind=rewind, rollback_target=select)  # type: ignore[arg-type]
    past, step, last = RollbackHistory(), 0, None
    for apart, diverges, finite, skips, good, back in numbers:
        step += apart
        events = (divergence(step, onset=step - back),) if diverges else ()
        values = {value for value in good if value <= step}
        before = past
        past, decision = decide(policy, past, Situation(step, events, 1.0, skips, False, finite, states(*values)))
        assert not before.ended or decision == Decision()
        assert not before.gave_up or decision == Decision() or not finite
        if decision.action == "rollback":
            assert decision.target in values
            if not finite:
                continue  # any finite state is better than the present one
            assert decision.target < decision.onset
            assert 0 < decision.easing_factor <= 0.5
            if last is not None and decision.onset <= last.at + policy.same_trouble_within:
                older = [value for value in values if value < min(last.to, decision.onset) and not left(before, value)]
                assert decision.target > last.at or decision.target < last.to or not older
            last = past.rollbacks[-1]
    assert len(past.rollbacks) <= policy.max_rollbacks_in_all


INITIAL = GoodState(0, float("nan"), initial=True)


def at_the_start(step: int, update_ratio: float = 0.5) -> Situation:
    facts = StartFacts(9.0, 2.0, update_ratio, step - 3, 3, 3.0)
    event = at_step(step, "divergence", Severity.CRITICAL, facts=facts)
    return Situation(step, (event,), good=(INITIAL,))


def test_a_problem_in_the_first_steps_restores_the_initial_weights_with_smaller_steps_for_good() -> None:
    past, decision = decide(POLICY, RollbackHistory(), at_the_start(5))
    assert (decision.action, decision.target) == ("rollback", 0)
    assert decision.lasting_share == pytest.approx(0.1)
    past, decision = decide(POLICY, past, at_the_start(40))
    assert decision.lasting_share == pytest.approx(0.01)
    past, decision = decide(POLICY, past, at_the_start(80))
    assert decision.lasting_share == pytest.approx(0.001)
    _, decision = decide(POLICY, past, at_the_start(120))
    assert (decision.action, decision.final, decision.nothing_left) == ("give_up", True, False)
    assert "even at 0.001 times the learning rate" in decision.reason


def test_a_step_that_changed_the_weights_by_many_times_their_norm_was_too_large_by_as_much() -> None:
    assert decide(POLICY, RollbackHistory(), at_the_start(5, 5.0))[1].lasting_share == pytest.approx(0.02)
    assert decide(POLICY, RollbackHistory(), at_the_start(5, 1e30))[1].lasting_share == pytest.approx(0.001)
    assert decide(POLICY, RollbackHistory(), at_the_start(5, float("nan")))[1].lasting_share == pytest.approx(0.1)


def test_one_broken_step_does_not_lower_the_learning_rate() -> None:
    _, decision = decide(POLICY, RollbackHistory(), Situation(10, broken_step_taken=True, good=(INITIAL,)))
    assert (decision.target, decision.lasting_share) == (0, 1.0)


def test_a_lower_learning_rate_from_an_early_rollback_applies_to_later_rollbacks() -> None:
    past, _ = decide(POLICY, RollbackHistory(), at_the_start(5))
    later = Situation(5000, (divergence(5000, onset=4990),), good=(INITIAL, *states(4000, 4900)))
    past, decision = decide(POLICY, past, later)
    assert (decision.target, decision.lasting_share) == (4900, pytest.approx(0.1))
    again = Situation(5100, (divergence(5100, onset=5090),), good=(INITIAL, *states(4000, 4900)))
    assert decide(POLICY, past, again)[1].lasting_share == pytest.approx(0.01)


def test_weights_from_before_an_optimizer_that_took_over_are_restored_with_smaller_steps_for_good() -> None:
    good = (*states(100, 201), GoodState(252, float("nan"), initial=True))
    past, decision = decide(POLICY, RollbackHistory(), Situation(265, (divergence(265, first_high=254),), good=good))
    assert (decision.target, decision.lasting_share) == (252, pytest.approx(0.1))
    past, decision = decide(POLICY, past, Situation(290, (divergence(290, first_high=280),), good=good))
    assert (decision.target, decision.lasting_share) == (252, pytest.approx(0.01))
    skipped = Situation(277, skips_in_a_row=25, good=good)  # no step of it was taken
    assert decide(POLICY, RollbackHistory(), skipped)[1].target == 201


@pytest.mark.parametrize(("expected", "first_high", "target"), [(265, 252, 201), (365, 354, 252), (465, 454, 352)])
def test_what_began_before_an_optimizer_took_over_or_long_after_it_is_not_its_doing(
    expected: int, first_high: int, target: int
) -> None:
    good = (*states(100, 201), GoodState(252, float("nan"), initial=True), *states(352))
    now = Situation(expected, (divergence(expected, first_high=first_high),), good=good)
    assert decide(POLICY, RollbackHistory(), now)[1].target == target


def test_the_initial_weights_are_tried_before_giving_up_where_nothing_else_helped() -> None:
    past, good = RollbackHistory(), (INITIAL, *states(50))
    targets = []
    for step in (100, 200, 300, 400):
        past, decision = decide(POLICY, past, Situation(step, (divergence(step, onset=step - 5),), good=good))
        targets.append((decision.action, decision.target))
    assert 0 in [target for _, target in targets]
    assert targets[0] == ("rollback", 50)


def test_when_all_rollbacks_are_used_up_the_initial_weights_are_tried_once() -> None:
    policy, past, good = RollbackPolicy(max_rollbacks=1), RollbackHistory(), (INITIAL, *states(3000, 3900, 4900))
    targets = []
    for step in (4000, 5100, 6200):
        past, decision = decide(policy, past, Situation(step, (divergence(step, onset=step - 10),), good=good))
        targets.append((decision.action, decision.target))
    assert targets == [("rollback", 3900), ("rollback", 0), ("give_up", -1)]


def test_initial_weights_that_diverge_again_are_not_tried_at_the_same_learning_rate() -> None:
    past, decision = decide(
        POLICY, RollbackHistory(), Situation(30, (divergence(30, loss=9.0, level=2.0),), 9.0, good=(INITIAL,))
    )
    decisions = [decision]
    for step in range(31, 60):
        past, decision = decide(POLICY, past, Situation(step, loss=9.0, good=(INITIAL,)))
        decisions += [decision] if decision.action != "nothing" else []
    assert [item.target for item in decisions[:2]] == [0, 0]
    assert [item.easing_factor for item in decisions[:2]] == [0.5, 0.25]
    assert decisions[1].lasting_share < decisions[0].lasting_share


def test_where_no_step_was_taken_the_initial_weights_are_still_there() -> None:
    past = RollbackHistory()
    for skips in (25, 50, 75):
        past, decision = decide(POLICY, past, Situation(skips, skips_in_a_row=skips, good=(INITIAL,)))
        assert (decision.action, decision.final) == ("give_up", False)
    _, decision = decide(POLICY, past, Situation(100, skips_in_a_row=100, good=(INITIAL,)))
    assert (decision.action, decision.final, decision.nothing_left) == ("give_up", True, True)


LOSSES_AROUND = (2.1, 2.2, 2.3, 2.2, 2.15, 2.25) * 8


def after_changed_data(
    losses: list[float], *, left: float = 3.0, set_aside: int | None = 500, around: tuple[float, ...] = LOSSES_AROUND
) -> tuple[RollbackHistory, list[Decision]]:
    """What is decided after a rollback from step 500 to step 400, whose weights give these losses then."""
    good = (GoodState(300, 2.5, around=around), GoodState(400, 2.2, around=around))
    event = divergence(500, loss=4.0, level=2.0, onset=490)
    past, _ = decide(POLICY, RollbackHistory(), Situation(500, (event,), 4.0, good=good, recent=(left,) * 10))
    decisions = []
    for step, loss in enumerate(losses, 501):
        past, decision = decide(POLICY, past, Situation(step, loss=loss, good=good, set_aside=set_aside))
        decisions += [decision] if decision.action != "nothing" else []
    return past, decisions


def test_restored_weights_whose_first_losses_are_high_say_that_the_data_has_changed() -> None:
    past, (decision,) = after_changed_data([3.8] * 100)
    assert (decision.action, decision.onset, decision.target) == ("data_changed", 490, 500)
    assert decision.undoes == 100
    assert decision.reason == (
        "The weights of step 400 give a loss of 3.8 where they gave 2.2: the data or the loss function changed at "
        "about step 490."
    )
    assert not past.gave_up


def test_changed_data_changed_at_the_first_high_loss_and_not_where_it_may_have_begun() -> None:
    good = (GoodState(400, 2.2, around=LOSSES_AROUND),)
    event = divergence(500, loss=4.0, level=2.0, onset=484, first_high=489)
    past, _ = decide(POLICY, RollbackHistory(), Situation(500, (event,), 4.0, good=good, recent=(3.0,) * 10))
    decisions = []
    for step in range(501, 520):
        past, decision = decide(POLICY, past, Situation(step, loss=3.8, good=good, set_aside=500))
        decisions += [decision] if decision.action != "nothing" else []
    assert [(item.action, item.onset) for item in decisions] == [("data_changed", 489)]
    assert decisions[0].reason.endswith("changed at about step 489.")


@pytest.mark.parametrize(("left", "set_aside"), [(3.9, 500), (3.0, None), (3.0, 400)])
def test_replaced_weights_are_not_brought_back_if_deleted_or_if_the_restored_ones_are_better(
    left: float, set_aside: int | None
) -> None:
    _, (decision,) = after_changed_data([3.8] * 100, left=left, set_aside=set_aside)
    assert (decision.action, decision.target, decision.undoes) == ("data_changed", -1, 0)


def test_restored_weights_that_diverge_again_from_their_own_level_are_to_blame_as_ever() -> None:
    good = tuple(GoodState(number, 2.2, around=LOSSES_AROUND) for number in (200, 300, 400))
    event, step, decisions = divergence(500, loss=4.0, level=2.0, onset=490), 500, []
    past, decision = decide(POLICY, RollbackHistory(), Situation(step, (event,), 4.0, good=good, recent=(3.0,) * 10))
    for _ in range(3):
        for loss in (2.2, 2.3, 3.0, 3.4, *[4.8] * 20):
            step += 1
            past, decision = decide(POLICY, past, Situation(step, loss=loss, good=good, set_aside=step))
            if decision.action != "nothing":
                decisions.append((decision.action, decision.target, decision.final))
                break
    assert decisions == [("rollback", 400, False), ("rollback", 300, False), ("give_up", -1, True)]


def test_bad_data_that_has_passed_by_then_is_not_called_a_change() -> None:
    assert after_changed_data([3.8] * 3 + [2.2] * 60)[1] == []


def test_rollbacks_from_changed_data_do_not_count_and_never_end_a_training() -> None:
    past, step, actions = RollbackHistory(), 1000, []
    for _ in range(30):
        good = (GoodState(step - 100, 2.2, around=LOSSES_AROUND),)
        event = divergence(step, loss=4.0, level=2.0, onset=step - 10)
        past, decision = decide(POLICY, past, Situation(step, (event,), 4.0, good=good, recent=(3.0,) * 10))
        actions.append(decision.action)
        assert not decision.final
        for _ in range(10):
            step += 1
            past, decision = decide(POLICY, past, Situation(step, loss=3.8, good=good, set_aside=step))
        step += 150
    assert actions[:2] == ["rollback"] * 2
    assert set(actions[2:]) == {"nothing"}, "then a higher loss is no reason for a rollback any more"
    assert not past.gave_up


def test_only_losses_of_the_part_that_diverged_are_judged_after_a_rollback() -> None:
    good = (GoodState(400, 2.2, around=LOSSES_AROUND),)
    event = at_step(500, "divergence", Severity.CRITICAL, "", "critic", {"loss": 4.0, "level": 2.0, "onset": 490.0})
    past, _ = decide(POLICY, RollbackHistory(), Situation(500, (event,), 4.0, good=good, place="critic"))
    for step in range(501, 520):
        past, decision = decide(POLICY, past, Situation(step, loss=2.2, good=good, place="critic"))
        assert decision == Decision()
        past, decision = decide(POLICY, past, Situation(step, loss=9.0, good=good, place="maker"))
        assert decision == Decision()


def test_a_loss_that_can_be_negative_and_is_below_that_of_the_state_causes_no_rollback() -> None:
    event = divergence(190, loss=-1788.0, level=-2010.0)
    for initial in (False, True):
        good = (GoodState(1, -69.0, initial, around=(-69.0, -40.0, -50.0) * 5),)
        past, decision = decide(POLICY, RollbackHistory(), Situation(190, (event,), -1788.0, good=good))
        assert (decision.action, decision.final) == ("give_up", False)
        assert "not above that of step 1, -50" in decision.reason
        assert past.rollbacks == ()
    low = (GoodState(100, -2000.0, around=(-2000.0,) * 9),)
    assert decide(POLICY, RollbackHistory(), Situation(190, (event,), -1788.0, good=low))[1].action == "rollback"
    broken = Situation(190, weights_finite=False, good=good)
    assert decide(POLICY, RollbackHistory(), broken)[1].action == "rollback"


def test_an_early_state_with_the_same_high_loss_as_before_is_accepted() -> None:
    early = (GoodState(1, math.nan, around=(2.6, 2.5, 2.5, 2.4, 2.3) * 4),)
    event = divergence(400, loss=3.1, level=0.03, onset=396)
    past, decision = decide(POLICY, RollbackHistory(), Situation(400, (event,), 3.1, good=early))
    assert (decision.action, decision.target) == ("rollback", 1)
    for step in range(401, 450):
        past, decision = decide(POLICY, past, Situation(step, loss=2.5, good=early))
        assert decision == Decision()
