from __future__ import annotations

import gc

from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.vocabulary.measured.signal import MAX_LAYOUTS, Signal, shared_layout

LOSS, NORM = Signal("loss"), Signal("grad_norm")


def test_the_same_signals_are_one_object() -> None:
    assert shared_layout([LOSS, NORM]) is shared_layout((LOSS, NORM))
    assert shared_layout([LOSS, NORM]) is not shared_layout([NORM, LOSS])
    assert shared_layout([]) == ()


@given(st.lists(st.lists(st.text(max_size=3), max_size=4), max_size=20))
def test_a_layout_always_equals_the_requested_signals(names: list[list[str]]) -> None:
    for item in names:
        signals = [Signal(name) for name in item]  # new objects every time, whose ids come again
        assert shared_layout(signals) == tuple(signals)
        del signals
        gc.collect(0)


def test_more_layouts_than_are_kept_are_right_as_well() -> None:
    for number in range(2 * MAX_LAYOUTS + 10):
        assert shared_layout([LOSS, Signal("loss", str(number))])[1].place == str(number)
    assert shared_layout([LOSS, NORM]) is shared_layout([LOSS, NORM])
