from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.errors import TrainingDiverged
from mlflow_stability.probes.ranks.rank_row import RankRow
from mlflow_stability.recovery.rollback_state import HEALTHY, NOTHING, Decision, StopPlace
from mlflow_stability.session.autopilot.ranks import decision_of, orders_of


def heard_of(decision: Decision, step: int, there: int | None = None) -> Decision:
    """A decision on `step` as another process hears it, whose own step is `there`."""
    row = RankRow(orders=orders_of(decision, step))
    return decision_of(row, step if there is None else there)


@given(st.integers(1, 10**9), st.integers(0, 10**6), st.integers(0, 10**6), st.tuples(*[st.booleans()] * 4))
def test_a_rollback_means_the_same_step_in_a_process_that_counts_its_own(
    step: int, back: int, behind: int, flags: tuple[bool, bool, bool, bool]
) -> None:
    healthy, trouble, snapshot, checkpoint = flags
    sent = Decision(
        "rollback",
        "why",
        target=step - back,
        easing_factor=0.25,
        easing_steps=400,
        healthy=healthy,
        trouble=trouble,
        snapshot=snapshot,
        checkpoint=checkpoint,
    )
    heard = heard_of(sent, step, step - behind)
    assert heard.rolls_back
    assert heard.target == step - back - behind
    assert (heard.easing_factor, heard.easing_steps) == (0.25, 400)
    assert (heard.healthy, heard.trouble, heard.snapshot, heard.checkpoint) == flags


def test_without_a_decision_nothing_is_received() -> None:
    assert heard_of(NOTHING, 7) == NOTHING
    assert decision_of(RankRow(), 7) == NOTHING
    assert heard_of(HEALTHY, 7) == HEALTHY


def test_the_end_of_one_process_is_the_end_of_all() -> None:
    heard = heard_of(Decision(ending=TrainingDiverged("enough")), 3)
    assert isinstance(heard.ending, TrainingDiverged)


@given(st.dictionaries(st.integers(0, 4095), st.integers(0, 50), min_size=1))
def test_of_conditions_met_on_several_ranks_only_one_is_received(met: dict[int, int]) -> None:
    stop = decision_of(RankRow(conditions=met), 3).stop
    assert stop is not None
    assert met[stop.rank] == stop.condition


def test_a_condition_is_received_whatever_else_is_decided() -> None:
    decided = Decision(reset=True, cut=True, ahead=True)
    heard = decision_of(RankRow(orders=orders_of(decided, 3), conditions={0: 6}), 3)
    assert heard == Decision(reset=True, cut=True, ahead=True, stop=StopPlace(0, 6))


def test_a_rollback_is_not_lost_when_a_healthy_step_is_read_after_it() -> None:
    back = Decision("rollback", target=3, trouble=True)
    assert back.joined(HEALTHY) == back
    assert HEALTHY.joined(back) == back


@pytest.mark.parametrize("order", ["trouble", "reset", "cut", "ahead", "release"])
def test_what_one_of_two_decisions_orders_is_not_lost(order: str) -> None:
    ordered = Decision(**{order: True})  # type: ignore[arg-type]
    assert ordered.joined(NOTHING) == NOTHING.joined(ordered) == ordered


def test_the_exception_of_one_of_two_decisions_is_not_lost() -> None:
    error = RuntimeError()
    assert Decision(ending=error).joined(NOTHING).ending is NOTHING.joined(Decision(ending=error)).ending is error
