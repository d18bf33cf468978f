"""An episode of trouble is reported once, unless it becomes more severe; outliers are counted over the last steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.detectors.episodes import EpisodeFilter, OutlierSeries, RecentOutliers
from mlflow_stability.vocabulary.result import Severity

INFO, WARNING, CRITICAL = Severity.INFO, Severity.WARNING, Severity.CRITICAL


def test_an_episode_is_reported_once_and_again_where_it_becomes_more_severe() -> None:
    episode, values = EpisodeFilter(), (INFO, INFO, CRITICAL, WARNING, CRITICAL)
    assert [episode.report(severity) for severity in values] == [True, False, True, False, False]


@pytest.mark.parametrize(("normal", "is_new"), [(2, False), (3, True)])
def test_an_episode_ends_with_normal_values_in_a_row(normal: int, is_new: bool) -> None:
    episode = EpisodeFilter()
    episode.report(WARNING)
    episode.note_calm(3)
    episode.note_calm(3)
    assert not episode.report(WARNING), "these were interrupted by another bad value"
    for _ in range(normal):
        episode.note_calm(3)
    assert episode.report(WARNING) is is_new


@given(st.lists(st.integers(1, 6), max_size=40), st.integers(1, 4), st.integers(0, 12))
def test_a_series_is_that_of_the_outliers_in_the_last_steps(apart: list[int], needed: int, within: int) -> None:
    recent, seen = RecentOutliers(), list[int]()
    for value in apart:
        seen.append(value + (seen[-1] if seen else 0))
        last = [step for step in seen if seen[-1] - step <= within]
        expected = OutlierSeries(len(last), last[0]) if len(last) >= needed else None
        assert recent.take(seen[-1], needed, within) == expected
