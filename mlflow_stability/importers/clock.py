"""Finds out when each value of a log was measured: its step, and the attempt that the step belongs to.

In: columns with what their rows say of step and epoch, if anything. Out: whole steps and attempts for each value.
Promised: the steps of the log wherever it has some; epochs where it has nothing else; where it has neither, or the
same step everywhere, values are numbered in their order and it is said so. A step that goes back for good is a new
attempt, in all metrics alike; a last value written at step 0 is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.importers.gathered import Column
from mlflow_stability.vocabulary.attempts import attempts_of

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
_MOST_REPEATED = 0.1
"""Of a metric with one value per epoch, at most this share repeats the epoch before."""
_LARGEST_STEP = 2.0**53


@dataclass(frozen=True, slots=True, eq=False)
class Clock:
    """When the rows of one log happened."""

    rows: _Ints
    """The rows that there are, in order."""
    steps: _Floats
    """For each of them its step; rows that have none of their own have the one before."""
    main: _Ints
    """The rows of the metric that tells the time to all others."""
    begins: _Ints
    """The rows at which a new attempt begins."""
    ordinal: bool
    recounted: bool = False
    """Whether steps are made of the log's epochs and steps; then a value's own step is not its step."""
    reason: str = ""
    """Why steps are not simply those of the log."""

    def of(self, column: Column) -> tuple[_Ints, _Ints]:
        """Steps and attempts of a metric's values, in the order in which they were logged."""
        rows = np.frombuffer(column.rows, np.int64)
        attempts = np.searchsorted(self.begins, rows, "right").astype(np.int64)
        own = np.frombuffer(column.steps, np.float64)
        if self.ordinal or stands_still(own):
            counted = np.searchsorted(self.main, rows, "right") - 1 if self.ordinal else np.arange(len(rows))
            return np.maximum(counted, 0).astype(np.int64), attempts
        told = self.steps[np.searchsorted(self.rows, rows)]
        if not self.recounted:
            told = np.where(np.isfinite(own) & (np.abs(own) <= _LARGEST_STEP), np.round(own), told)
        steps = told.astype(np.int64)
        if len(steps) > 2 and steps[-1] == 0 < steps[-2] and attempts[-1] == attempts[-2]:
            steps[-1] = int(self.steps.max())  # the value of the end, logged without a step
        return steps, attempts


def clock_of(columns: Mapping[str, Column], main: Column) -> Clock:
    """The clock of a log; `main` is the metric whose steps count where metrics disagree."""
    rows, places = np.unique(
        np.concatenate([np.frombuffer(each.rows, np.int64) for each in columns.values()]), return_index=True
    )
    steps = _joined([each.steps for each in columns.values()])[places]
    epochs = _joined([each.epochs for each in columns.values()])[places]
    steps, epochs = (np.where(np.abs(each) <= _LARGEST_STEP, each, np.nan) for each in (steps, epochs))
    main_rows = np.frombuffer(main.rows, np.int64)
    told, ordinal, recounted, reason = _tell(steps, epochs, np.searchsorted(rows, main_rows))
    begins = np.empty(0, np.int64)
    if ordinal:
        longest = max(columns.values(), key=len)
        main_rows = main_rows if len(main) == len(longest) else np.frombuffer(longest.rows, np.int64)
    else:
        begins = _beginnings(rows, told, main_rows, told[np.searchsorted(rows, main_rows)])
    return Clock(rows, told, main_rows, begins, ordinal, recounted, reason)


def stands_still(steps: _Floats) -> bool:
    """Whether a metric's steps are all the same though it has many values."""
    return len(steps) >= 4 and bool((steps == steps[0]).all())


def _joined(arrays: list[object]) -> _Floats:
    return np.concatenate([np.frombuffer(each, np.float64) for each in arrays])  # type: ignore[call-overload]


def _tell(steps: _Floats, epochs: _Floats, main: _Ints) -> tuple[_Floats, bool, bool, str]:
    """The step of every row; whether there is none; whether it is made of epochs; and why."""
    own = steps[main][np.isfinite(steps[main])]
    epoch = np.floor(_filled(epochs))
    if len(own) > 1 and not (own == own[0]).all() and _whole(own):
        known = np.isfinite(steps)
        width = _width_of_an_epoch(steps[known], epoch[known]) if np.isfinite(epochs).any() else 0
        if width and (epoch.max() - epoch.min() + 1) * width <= _LARGEST_STEP:
            told = _filled(np.where(known, (epoch - epoch.min()) * width + steps, np.nan))
            return told, False, True, f"steps begin anew in each epoch, so epochs of {width:,} steps are put in a row"
        return np.round(_filled(steps)), False, False, ""
    of_main = epoch[main] if np.isfinite(epochs).any() else np.empty(0)
    if len(of_main) > 1 and of_main[0] != of_main[-1] and (np.diff(of_main) == 0).mean() <= _MOST_REPEATED:
        return epoch, False, True, "the step stands still, so epochs are taken for steps" if len(own) > 1 else ""
    none = np.zeros(len(steps))
    if len(own) > 1 and (own == own[0]).all():
        return none, True, False, f"every step is {own[0]:g}, so values are numbered in their order"
    if len(own) > 1:
        return none, True, False, "steps are fractions, so values are numbered in their order"
    return none, len(main) > 1, False, "the log has no steps, so values are numbered in their order"


def _whole(steps: _Floats) -> bool:
    """Whether these can be steps: whole numbers, or fractions that stay apart when they are rounded."""
    if (steps == np.floor(steps)).all():
        return True
    apart = np.diff(np.round(steps))
    return bool((apart == 0).mean() <= _MOST_REPEATED)


def _width_of_an_epoch(steps: _Floats, epochs: _Floats) -> int:
    """How many steps an epoch has, if steps begin anew in each; else 0."""
    back = np.diff(steps) < 0
    if not back.any():
        return 0
    next_epoch = np.diff(np.floor(epochs)) > 0
    if (back & next_epoch).sum() < 0.8 * max(1, back.sum()) or (back & next_epoch).sum() < 0.5 * next_epoch.sum():
        return 0
    return int(steps.max()) + (1 if steps.min() == 0 else 0)


def _filled(values: _Floats) -> _Floats:
    """With the last known value where there is none; at the beginning, the first that comes."""
    known = np.isfinite(values)
    if not known.any():
        return np.zeros(len(values))
    places = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1))
    filled: _Floats = values[np.where(places < 0, int(np.argmax(known)), places)]
    return filled


def _beginnings(rows: _Ints, steps: _Floats, main_rows: _Ints, main_steps: _Floats) -> _Ints:
    """The rows at which the step goes back for good."""
    attempts = attempts_of(main_steps.astype(np.int64))
    begins = []
    for place in np.flatnonzero(np.diff(attempts) > 0):
        before, first = main_rows[place], main_rows[place + 1]
        between = np.flatnonzero((rows > before) & (rows < first) & (steps <= main_steps[place + 1]))
        begins.append(int(rows[between[0]]) if len(between) else int(first))
    return np.asarray(begins, np.int64)
