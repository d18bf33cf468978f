"""Gives what a script logged in its own units the units of our signals.

In: the metrics of a run that we did not record. Out: the same, shares from 0 to 1. Guarantees: a percentage becomes a
share; a count of patterns becomes a share of all, or of the most that were ever counted, which is never too low; what
cannot be a share, as memory in megabytes, is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.vocabulary.run import Metric

SHARES = frozenset({"memory_share", "mfu", "sdr_unique_ratio"})
"""The quantities that are shares."""
MOST = 1.05
"""No share is above it, as measured; what is, is a percentage, ..."""
MOST_PERCENT = 105.0
"""... and what is above this is neither."""


def in_usual_units(metrics: Iterable[Metric]) -> list[Metric]:
    """The metrics that can be compared with ours."""
    metrics = list(metrics)
    rows = {metric.meaning.place: metric for metric in metrics if metric.meaning.quantity == "sdr_rows"}
    return list(_converted(metrics, rows))


def _converted(metrics: Iterable[Metric], rows: Mapping[str, Metric]) -> Iterator[Metric]:
    for metric in metrics:
        if metric.meaning.quantity not in SHARES:
            yield metric
            continue
        values = metric.series.values
        values = np.where(values >= 0, values, np.nan)  # nanoGPT prints an MFU of -100 % until it is known
        most = float(np.max(values[np.isfinite(values)], initial=0.0))
        if metric.meaning.quantity == "sdr_unique_ratio" and most > MOST and _are_whole(values):
            values = _share_of_patterns(metric, values, most, rows.get(metric.meaning.place))
        elif most > MOST_PERCENT:
            continue
        elif most > MOST:
            values = values / 100
        yield replace(metric, series=replace(metric.series, values=values))


def _share_of_patterns(
    metric: Metric, values: NDArray[np.float64], most: float, rows: Metric | None
) -> NDArray[np.float64]:
    """A share where the number of codes is known; else of the most that were ever counted, which is never too low."""
    if rows is not None and np.array_equal(rows.series.steps, metric.series.steps):
        shares: NDArray[np.float64] = values / np.maximum(rows.series.values, 1.0)
        return shares
    return values / most


def _are_whole(values: NDArray[np.float64]) -> bool:
    known = values[np.isfinite(values)]
    return bool((known == np.floor(known)).all())
