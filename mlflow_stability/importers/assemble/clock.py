"""Finds out when each value of a log was measured: its step, and the attempt that the step belongs to.

In: columns with what their rows say of step and epoch, if anything. Out: whole steps and attempts for each value.
Guarantees: the steps of the log wherever it has some; epochs where it has nothing else; where it has neither, or the
same step everywhere, values are numbered in their order and it is said so. A step that goes back for good is a new
attempt, in all metrics alike; a last value written at step 0 is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.importers.assemble.log_content import Column
from mlflow_stability.vocabulary.run import number_attempts

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
_MOST_REPEATED = 0.1
"""Of a metric with one value per epoch, at most this share repeats the epoch before."""
_FEW_OF_ONE = 4
"""So many values of one epoch at most, as several processes print them, or a progress bar that is drawn again."""
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
    averaged: bool = False
    """Whether the values of a metric at one step are one: of several processes, or of a bar that was drawn again."""
    unit: str = "step"
    """What a step is called in the log: ``epoch`` where epochs are all that it counts."""

    def numbers(self, column: Column) -> bool:
        """Whether a metric's values are numbered in their order, for want of steps that move."""
        stands = not self.recounted and stands_still(np.frombuffer(column.steps, np.float64))
        return self.ordinal or stands

    def of(self, column: Column) -> tuple[_Ints, _Ints]:
        """Steps and attempts of a metric's values, in the order in which they were logged."""
        rows = np.frombuffer(column.rows, np.int64)
        attempts = np.searchsorted(self.begins, rows, "right").astype(np.int64)
        own = np.frombuffer(column.steps, np.float64)
        if self.numbers(column):
            counted = np.searchsorted(self.main, rows, "right") - 1 if self.ordinal else np.arange(len(rows))
            return np.maximum(counted, 0).astype(np.int64), attempts
        told = self.steps[np.searchsorted(self.rows, rows)]
        if not self.recounted:
            told = np.where(np.isfinite(own) & (np.abs(own) <= _LARGEST_STEP), np.round(own), told)
        steps = told.astype(np.int64)
        if len(steps) > 2 and steps[-1] == 0 < steps[-2] and attempts[-1] == attempts[-2]:
            steps[-1] = int(self.steps.max())  # the value of the end, logged without a step
        return steps, attempts


def clock_of(columns: Mapping[str, Column], main: Column, totals: Iterable[int] = ()) -> Clock:
    """The clock of a log; `main` is the metric whose steps count where metrics disagree.

    `totals`: the numbers that stood behind a step's slash, as in ``200/2983 batches``, the most common first.
    """
    rows, places = np.unique(
        np.concatenate([np.frombuffer(each.rows, np.int64) for each in columns.values()]), return_index=True
    )
    steps = _joined([each.steps for each in columns.values()])[places]
    epochs = _joined([each.epochs for each in columns.values()])[places]
    steps, epochs = (np.where(np.abs(each) <= _LARGEST_STEP, each, np.nan) for each in (steps, epochs))
    main_rows = np.frombuffer(main.rows, np.int64)
    of_main = np.searchsorted(rows, main_rows)
    told, ordinal, recounted, reason, unit = _tell(steps, epochs, of_main, totals)
    averaged = unit == "epoch" and not _hardly_repeated(told[of_main])
    begins = np.empty(0, np.int64)
    if ordinal:
        longest = max(columns.values(), key=len)
        main_rows = main_rows if len(main) == len(longest) else np.frombuffer(longest.rows, np.int64)
    else:
        begins = _beginnings(rows, told, main_rows, told[np.searchsorted(rows, main_rows)])
    return Clock(rows, told, main_rows, begins, ordinal, recounted, reason, averaged, unit)


def stands_still(steps: _Floats) -> bool:
    """Whether a metric's steps are all the same though it has many values."""
    return len(steps) >= 4 and bool((steps == steps[0]).all())


def _joined(arrays: list[object]) -> _Floats:
    return np.concatenate([np.frombuffer(each, np.float64) for each in arrays])  # type: ignore[call-overload]


def _tell(steps: _Floats, epochs: _Floats, main: _Ints, totals: Iterable[int]) -> tuple[_Floats, bool, bool, str, str]:
    """The step of every row; whether there is none; whether it is made of epochs; why; and what a step is called."""
    own = steps[main][np.isfinite(steps[main])]
    epoch = np.floor(_filled(epochs))
    if len(own) > 1 and not (own == own[0]).all() and _whole(own):
        counted = main[np.isfinite(steps[main])]
        width = _width_of_an_epoch(own, epoch[counted], totals) if np.isfinite(epochs).any() else 0
        if width and (np.abs(epoch).max() + 1) * width <= _LARGEST_STEP:
            told = _in_a_row(steps, epoch, counted, width)
            reason = f"steps restart in each epoch of {width:,} steps, so a step is epoch x {width:,} + step"
            return told, False, True, reason, "step"
        return np.round(_filled(steps)), False, False, "", "step"
    of_main = _filled(epochs)[main] if np.isfinite(epochs).any() else np.empty(0)
    if len(of_main) > 1 and np.floor(of_main[0]) != np.floor(of_main[-1]) and _counts(of_main):
        reason = "the step does not change, so epochs are used as steps" if len(own) > 1 else ""
        return epoch, False, True, reason, "epoch"
    none = np.zeros(len(steps))
    if len(own) > 1 and (own == own[0]).all():
        return none, True, False, f"every step is {own[0]:g}, so values are numbered in their order", "step"
    if len(own) > 1:
        return none, True, False, "steps are fractions, so values are numbered in their order", "step"
    return none, len(main) > 1, False, "the log has no steps, so values are numbered in their order", "step"


def _in_a_row(steps: _Floats, epoch: _Floats, main: _Ints, width: int) -> _Floats:
    """Steps of the whole training; what counts by itself beside the main metric, as a validation, is where that was."""
    told = _filled(np.where(np.isfinite(steps), epoch * width + steps, np.nan))
    rows = np.arange(len(told))
    before = main[np.maximum(np.searchsorted(main, rows, "right") - 1, 0)]
    return np.where(before <= rows, np.maximum(told, told[before]), told)


def _counts(epochs: _Floats) -> bool:
    """Whether epochs can stand for steps: hardly ever repeated, or each as often as the others, a few times at most."""
    if _hardly_repeated(np.floor(epochs)):
        return True
    if (epochs != np.floor(epochs)).any():
        return False
    lengths = np.diff(np.flatnonzero(np.diff(epochs, prepend=np.nan, append=np.nan) != 0))
    usual = int(np.median(lengths))
    return usual <= _FEW_OF_ONE and float((lengths == usual).mean()) >= 1 - _MOST_REPEATED


def _hardly_repeated(steps: _Floats) -> bool:
    return len(steps) < 2 or float((np.diff(steps) == 0).mean()) <= _MOST_REPEATED


def _whole(steps: _Floats) -> bool:
    """Whether these can be steps: whole numbers, or fractions that stay apart when they are rounded."""
    if (steps == np.floor(steps)).all():
        return True
    apart = np.diff(np.round(steps))
    return bool((apart == 0).mean() <= _MOST_REPEATED)


def _width_of_an_epoch(steps: _Floats, epochs: _Floats, totals: Iterable[int]) -> int:
    """How many steps of the main metric an epoch has, if they begin anew in each; else 0.

    The log's own total, where it has one that is large enough; else what the last step and the distance between steps
    let expect: 0, 100, … 900 are epochs of 1,000 steps, and 0, 100, … 900, 937 are epochs of 938.
    """
    ahead = np.diff(steps)
    back = ahead < 0
    if not back.any():
        return 0
    next_epoch = np.diff(np.floor(epochs)) > 0
    if (back & next_epoch).sum() < 0.8 * max(1, back.sum()) or (back & next_epoch).sum() < 0.5 * next_epoch.sum():
        return 0
    first, last = int(steps.min()), int(steps.max())
    total = next((each for each in totals if each >= last), 0)
    if total:
        return total if first > 0 or total > last else total + 1
    onward = ahead[ahead > 0]
    usual = float(np.median(onward)) if len(onward) else 1.0
    before_the_last = ahead[np.flatnonzero(steps[1:] == last)]
    even = bool(len(before_the_last)) and float(before_the_last[0]) == usual
    return last - first + int(usual) if even and first in (0, 1, usual) else last + (first == 0)


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
    attempts = number_attempts(main_steps.astype(np.int64))
    begins = []
    for place in np.flatnonzero(np.diff(attempts) > 0):
        before, first = main_rows[place], main_rows[place + 1]
        between = np.flatnonzero((rows > before) & (rows < first) & (steps <= main_steps[place + 1]))
        begins.append(int(rows[between[0]]) if len(between) else int(first))
    return np.asarray(begins, np.int64)
