"""Says when a loss stops being logged while everything logged beside it goes on: such an end says nothing.

In: a run's history. Out: a sentence, empty where the loss goes on to the end.
"""

from __future__ import annotations

import numpy as np

from mlflow_stability.vocabulary.run_history import Metric, RunHistory

FEWEST, SHARE = 10, 0.05
"""So many points of another metric, and this share of all it has, lie behind the last loss."""
BESIDE = 0.5
"""A metric is logged beside the loss if it has a value at this share of the loss's steps."""


def silence_of(history: RunHistory) -> str:
    """That the loss is missing at the end."""
    losses = [each for each in history.of("loss") if len(each.series)]
    if not losses:
        return ""
    main = max(losses, key=_last)
    attempt, last = _last(main)
    steps = main.series.steps[main.series.attempts == attempt]
    for other in history.metrics:
        mine = other.series.steps[other.series.attempts == attempt]
        if other.meaning.bookkeeping or other.meaning.quantity in ("loss", "val_loss") or len(mine) < FEWEST:
            continue
        behind = int((mine > last).sum())
        if behind >= max(FEWEST, SHARE * len(mine)) and np.isin(steps, mine).mean() >= BESIDE:
            return f"{main.name} has no value after step {last}, while {other.name} goes on to step {int(mine.max())}"
    return ""


def _last(metric: Metric) -> tuple[int, int]:
    series = metric.series
    attempt = int(series.attempts.max())
    return attempt, int(series.steps[series.attempts == attempt].max())
