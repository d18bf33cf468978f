from __future__ import annotations

import gc

from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.vocabulary.measured.signal import MOST, Signal, one_layout

LOSS, NORM = Signal("loss"), Signal("grad_norm")


def test_the_same_signals_are_one_object() -> None:
    assert one_layout([LOSS, NORM]) is one_layout((LOSS, NORM))
    assert one_layout([LOSS, NORM]) is not one_layout([NORM, LOSS])
    assert one_layout([]) == ()


@given(st.lists(st.lists(st.text(max_size=3), max_size=4), max_size=20))
def test_a_layout_always_equals_what_it_was_asked_for(names: list[list[str]]) -> None:
    for each in names:
        signals = [Signal(name) for name in each]  # new objects every time, whose ids come again
        assert one_layout(signals) == tuple(signals)
        del signals
        gc.collect(0)


def test_more_layouts_than_are_kept_are_right_as_well() -> None:
    for number in range(2 * MOST + 10):
        assert one_layout([LOSS, Signal("loss", str(number))])[1].place == str(number)
    assert one_layout([LOSS, NORM]) is one_layout([LOSS, NORM])
