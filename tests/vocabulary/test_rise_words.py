from __future__ import annotations

import pytest

from mlflow_stability.vocabulary.rise_words import above, changed, risen


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.35, ("up 35% from 2.1", "35% above 2.1", "+35% from start to end")),
        (9.99, ("up 999% from 2.1", "999% above 2.1", "+999% from start to end")),
        (45.0, ("46 times 2.1", "46 times 2.1", "46 times the start at the end")),
        (4.5e20, ("4.5e+20 times 2.1", "4.5e+20 times 2.1", "4.5e+20 times the start at the end")),
    ],
)
def test_a_rise_is_told_in_percent_and_in_times_where_that_would_be_a_row_of_digits(
    share: float, words: tuple[str, str, str]
) -> None:
    assert (risen(share, "2.1"), above(share, "2.1"), changed(share)) == words


def test_a_fall_is_told_in_percent() -> None:
    assert changed(-0.61) == "-61% from start to end"


def test_what_began_below_zero_is_no_multiple_of_its_start() -> None:
    assert changed(12.0, positive=False) == "+1200% from start to end"
