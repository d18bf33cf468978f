"""Says in which line of a log a finding begins.

In: episodes, and the history they were found in. Out: the same episodes; those that begin at a value of a printed log
name its line. Guarantees: an episode that has a line already, or whose values stand in no line, stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from mlflow_stability.vocabulary.result import Episode
from mlflow_stability.vocabulary.run import Metric, RunHistory

LINE = "line"
"""What the line is called among the evidence, as of what a log says in words."""


def with_lines(episodes: Iterable[Episode], history: RunHistory, starts: Mapping[int, int]) -> tuple[Episode, ...]:
    """The episodes with the line at which each of them begins."""
    metrics = {metric.name: metric for metric in history.metrics if metric.lines is not None}
    return tuple(_with_line(each, metrics.get(each.metric), starts) for each in episodes)


def _with_line(episode: Episode, metric: Metric | None, starts: Mapping[int, int]) -> Episode:
    if metric is None or metric.lines is None or LINE in episode.evidence:
        return episode
    places = np.flatnonzero(metric.series.steps == episode.start)
    attempts = (starts.get(int(each), int(each)) for each in metric.series.attempts[places])
    lines = [int(metric.lines[at]) for at, attempt in zip(places, attempts, strict=True) if attempt == episode.attempt]
    if not lines:
        return episode
    return replace(episode, line=lines[0], evidence={**episode.evidence, LINE: float(lines[0])})
