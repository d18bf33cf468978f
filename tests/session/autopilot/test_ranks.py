from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.errors import TrainingDiverged
from mlflow_stability.recovery.rollback_state import Decision
from mlflow_stability.session.autopilot.ranks import FIELDS, Orders, stop_named, stop_number


@given(st.integers(1, 10**9), st.integers(0, 10**6), st.integers(0, 10**6), st.tuples(*[st.booleans()] * 4))
def test_an_order_to_go_back_means_the_same_step_in_a_process_that_counts_its_own(
    step: int, back: int, behind: int, flags: tuple[bool, bool, bool, bool]
) -> None:
    sent = Orders(*flags, Decision("rollback", "why", target=step - back, easing_factor=0.25, easing_steps=400))
    numbers = sent.as_numbers(step)
    assert len(numbers) == FIELDS
    heard = Orders.from_numbers(numbers, step - behind)
    assert heard.rollback is not None
    assert heard.rollback.target == step - back - behind
    assert (heard.rollback.easing_factor, heard.rollback.easing_steps) == (0.25, 400)
    assert (heard.healthy, heard.trouble, heard.snapshot, heard.checkpoint) == flags


def test_without_orders_nothing_is_ordered() -> None:
    assert Orders.from_numbers(Orders().as_numbers(7), 7) == Orders()
    assert Orders.from_numbers([0.0] * FIELDS, 7) == Orders()


def test_the_end_of_one_process_is_the_end_of_all() -> None:
    heard = Orders.from_numbers(Orders(ending=TrainingDiverged("enough")).as_numbers(3), 3)
    assert isinstance(heard.ending, TrainingDiverged)


@given(st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 50)), min_size=1))
def test_of_conditions_met_on_several_ranks_the_largest_number_is_one_of_them(met: list[tuple[int, int]]) -> None:
    largest = max(stop_number(rank, condition) for rank, condition in met)
    heard = Orders.from_numbers(Orders(stop=largest).as_numbers(3), 3)
    assert stop_named(heard.stop) in met


def test_a_condition_stands_where_each_process_writes_it_whatever_else_is_ordered() -> None:
    numbers = Orders(stop=7, reset=True, cut=True, ahead=True).as_numbers(3)
    assert len(numbers) == FIELDS
    assert numbers[-1] == 7
    heard = Orders.from_numbers([*[0.0] * (FIELDS - 1), 7.0], 3)
    assert heard == Orders(stop=7)


def test_an_order_to_go_back_is_not_lost_when_a_healthy_step_is_read_after_it() -> None:
    back = Decision("rollback", target=3)
    both = Orders(trouble=True, rollback=back).joined(Orders(healthy=True))
    assert both == Orders(trouble=True, rollback=back)
