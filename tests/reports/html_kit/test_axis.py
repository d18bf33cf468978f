from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.reports.html_kit.axis import Axis, Tick, apart

CHARACTERS = 24


@given(st.floats(1e-12, 1e3), st.floats(1.5, 1e12), st.booleans())
def test_labels_of_ticks_that_are_kept_never_touch(low: float, ratio: float, logarithmic: bool) -> None:
    kept = apart(Axis(low, low * ratio, logarithmic).ticks(4), CHARACTERS)
    assert kept
    for left, right in pairwise(kept):
        gap = (right.at - left.at) / 100 * CHARACTERS - (len(left.label) + len(right.label)) / 2
        assert gap > 1


def test_ticks_that_have_room_all_stay_and_others_go_at_even_distances() -> None:
    ticks = [Tick(10.0 * number, f"1e-0{number}") for number in range(9)]
    assert apart(ticks, 200) == tuple(ticks)
    assert [each.at for each in apart(ticks, CHARACTERS)] == [0.0, 30.0, 60.0]
