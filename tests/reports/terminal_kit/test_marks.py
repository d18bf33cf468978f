from __future__ import annotations

import pytest
from findings import changed
from reports.samples import nan, oscillation, spike

from mlflow_stability.reports.terminal_kit import GUTTER, mark_line

WIDTH = GUTTER + 100


def line_of(*steps: tuple[int, int]) -> str:
    episodes = [changed(spike(), start=start, end=end) for start, end in steps]
    return mark_line(list(enumerate(episodes, start=1)), 0, 99, WIDTH).plain[GUTTER:]


def test_an_episode_is_a_number_with_a_bar_to_its_end() -> None:
    assert line_of((10, 10), (20, 24)) == " " * 10 + "1" + " " * 9 + "2━━━━"


def test_two_that_begin_together_are_both_seen() -> None:
    assert line_of((10, 10), (10, 15)).strip() == "12━━━━"


def test_the_worst_of_those_that_share_a_place_is_seen() -> None:
    mild, bad = changed(oscillation(), start=0, end=99), changed(nan(), start=50, end=59)
    line = mark_line([(1, mild), (2, bad)], 0, 99, WIDTH)
    styles = {str(span.style) for span in line.spans if span.start <= GUTTER + 55 < span.end}
    assert styles == {"bold red"}


@pytest.mark.parametrize("step", [-5, 500])
def test_an_episode_beyond_the_curve_is_marked_at_its_edge(step: int) -> None:
    assert len(line_of((step, step))) <= 100


def test_ascii_terminals_get_ascii() -> None:
    line = mark_line([(12, changed(spike(), end=400))], 0, 999, WIDTH, unicode=False)
    assert line.plain.strip().startswith("+==")
