"""Says when a loss stops being logged while everything logged beside it goes on: such an end says nothing.

In: a run's history. Out: a sentence, empty where the loss goes on to the end; another for a loss that
has a single point.
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


def single_loss(history: RunHistory) -> str:
    """That a loss was logged once and never again, so that there is no curve; empty where there is one, or none."""
    losses = [each for quantity in ("loss", "val_loss") for each in history.of(quantity) if len(each.series)]
    if not losses or any(len(each.series) > 1 for each in losses):
        return ""
    value = float(losses[0].series.values[0])
    return f"{losses[0].name} has a single point, {value:.4g} at step {int(losses[0].series.steps[0])}"


def _last(metric: Metric) -> tuple[int, int]:
    series = metric.series
    attempt = int(series.attempts.max())
    return attempt, int(series.steps[series.attempts == attempt].max())
