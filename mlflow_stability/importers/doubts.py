"""Find losses whose values are no curve of one quantity over time, so that their ups and downs mean nothing.

Such a metric stays in the run, but no longer as a loss: nothing is concluded from it, and a note says why. One that
became NaN or infinite keeps its meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.vocabulary.run import Metric
from mlflow_stability.vocabulary.text.metric_names import Meaning

UNCLEAR = "unclear"  # the quantity of such a metric
MIN_VALUES = 16  # minimum number of values that show whether they take turns
MIN_TURNS = 4  # minimum number of turns of each quantity
MAX_QUANTITIES = 8
TURNS_RATIO = 1 / 3
"""Maximum distance of a value to the one of the turn before, as a share of that to its neighbour; 1 for noise."""
MAX_PAIRS = 1000  # pairs of kinds that are compared
MIN_CHANGES = 12
"""Minimum number of changes between two kinds of lines that show whether one of them has the higher values."""
MIN_CHANGES_SHARE = 0.1  # the same as a share of all values
MIN_AGREEING = 0.95  # minimum share of these changes at which the same kind is higher


def doubts_about(
    metrics: Iterable[Metric], noticed: Mapping[str, str], *, may_take_turns: bool = True
) -> dict[str, str]:
    """Return for each doubtful loss why it is not judged.

    Args:
        metrics: All metrics of the run.
        noticed: Reasons that its reader saw, by the name of the loss.
        may_take_turns: Whether a loss of this format may be of several quantities in turn.
    """
    losses = [metric for metric in metrics if metric.meaning.quantity in ("loss", "val_loss")]
    any_finite = any(np.isfinite(metric.series.values).all() for metric in losses)
    doubts = {}
    for metric in losses:
        values = metric.series.values
        reason = ""
        if np.isfinite(values).all():
            reason = noticed.get(metric.name, "") or (_turns(values) if may_take_turns else "")
        elif metric.meaning.place and any_finite and not np.isfinite(values).any():
            # NaN in a loss makes the weights NaN, and with them every loss.
            reason = "it is never finite while other losses always are, so it does not apply"
        if reason:
            doubts[metric.name] = f"Not judged: {metric.name}, because {reason}."
    return doubts


def without_meaning(metric: Metric) -> Metric:
    """Return the metric as one of no known quantity, also where its own name is that of a loss."""
    meaning = Meaning(UNCLEAR, metric.name)
    return replace(metric, meaning=meaning, series=replace(metric.series, signal=meaning.signal))


def _turns(values: NDArray[np.float64]) -> str:
    """Return why values are of several quantities: each is near the one of some values before, far from the last."""
    if len(values) < MIN_VALUES:
        return ""
    judged = np.log(values) if values.min() > 0 else values
    to_neighbour = float(np.median(np.abs(np.diff(judged))))
    for count in range(2, min(MAX_QUANTITIES, len(values) // MIN_TURNS) + 1):
        if float(np.median(np.abs(judged[count:] - judged[:-count]))) < TURNS_RATIO * to_neighbour:
            return f"its values alternate between {count} levels, as those of several quantities in turn do"
    return ""


class LineKinds:
    """Metrics whose lines are of several kinds in turn, such as those of two data sets, with a level of each kind.

    The kind of a line is the words in front of its first value. Memory is bounded.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, float]] = {}
        self._changes: dict[tuple[str, str, str], list[int]] = {}

    def note(self, words: str, values: Mapping[str, float]) -> None:
        """Note the values of a line that begins with these words."""
        for name, value in values.items():
            last, before = self._last.get(name, (words, value))
            self._last[name] = words, value
            if last == words or value == before:
                continue
            pair = (name, min(last, words), max(last, words))
            if pair in self._changes or len(self._changes) < MAX_PAIRS:
                counts = self._changes.setdefault(pair, [0, 0])
                counts[0] += 1
                counts[1] += (value > before) == (words > last)

    def doubts(self, lengths: Mapping[str, int]) -> dict[str, str]:
        """Return names and reasons of the metrics that have a level for each kind; ``lengths``: number of values."""
        return {
            name: f"lines that begin with {first!r} and with {second!r} have different levels"
            for (name, first, second), (changes, rising) in self._changes.items()
            if changes >= max(MIN_CHANGES, MIN_CHANGES_SHARE * lengths.get(name, 0))
            and max(rising, changes - rising) >= MIN_AGREEING * changes
        }
