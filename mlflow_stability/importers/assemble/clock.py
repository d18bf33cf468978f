"""Determine the step and the attempt of each value of a log.

Steps are those of the log; epochs where it counts nothing else; where it has neither, or the same step everywhere,
values are numbered in their order. A step that goes back for good begins a new attempt in all metrics; a last value
written at step 0 does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.importers.assemble.log_content import Column
from mlflow_stability.vocabulary.run import number_attempts

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
_MAX_REPEATED_SHARE = 0.1
"""Share of values of a metric with one value per epoch that may repeat the epoch before."""
_MAX_PER_EPOCH = 4
"""Values of one epoch that several processes print, or a progress bar that is drawn again."""
_MAX_STEP = 2.0**53


@dataclass(frozen=True, slots=True, eq=False)
class Clock:
    """Steps and attempts of the rows of one log."""

    rows: _Ints
    """Numbers of all rows, in order."""
    steps: _Floats
    """Step of each row; that of the row before where a row has none."""
    main: _Ints
    """Rows of the metric whose steps count for all."""
    begins: _Ints
    """Rows at which a new attempt begins."""
    ordinal: bool
    """Whether values are numbered in their order."""
    recounted: bool = False
    """Whether steps are computed from the log's epochs and steps."""
    reason: str = ""
    """Why steps are not simply those of the log."""
    averaged: bool = False
    """Whether the values of a metric at one step are averaged: those of several processes, or of a bar drawn again."""
    unit: str = "step"
    """`epoch` where the log counts nothing else."""

    def numbers(self, column: Column) -> bool:
        """Whether a metric's values are numbered in their order, because its steps do not change."""
        return self.ordinal or (not self.recounted and _is_constant(np.frombuffer(column.steps, np.float64)))

    def of(self, column: Column) -> tuple[_Ints, _Ints]:
        """Return steps and attempts of a metric's values, in the order of the log."""
        rows = np.frombuffer(column.rows, np.int64)
        attempts = np.searchsorted(self.begins, rows, "right").astype(np.int64)
        own = np.frombuffer(column.steps, np.float64)
        if self.numbers(column):
            counted = np.searchsorted(self.main, rows, "right") - 1 if self.ordinal else np.arange(len(rows))
            return np.maximum(counted, 0).astype(np.int64), attempts
        numbers = self.steps[np.searchsorted(self.rows, rows)]
        if not self.recounted:
            numbers = np.where(np.isfinite(own) & (np.abs(own) <= _MAX_STEP), np.round(own), numbers)
        steps = numbers.astype(np.int64)
        if len(steps) > 2 and steps[-1] == 0 < steps[-2] and attempts[-1] == attempts[-2]:
            steps[-1] = int(self.steps.max())  # the last value, logged without a step
        return steps, attempts


def clock_of(columns: Mapping[str, Column], main: Column, totals: Iterable[int] = ()) -> Clock:
    """Return the clock of a log.

    Args:
        columns: Its metrics.
        main: The metric whose steps count where metrics disagree.
        totals: Numbers behind a step's slash, as in `200/2983 batches`, the most common first.
    """
    rows, places = np.unique(
        np.concatenate([np.frombuffer(column.rows, np.int64) for column in columns.values()]), return_index=True
    )
    steps = _joined([column.steps for column in columns.values()])[places]
    epochs = _joined([column.epochs for column in columns.values()])[places]
    steps, epochs = (np.where(np.abs(counts) <= _MAX_STEP, counts, np.nan) for counts in (steps, epochs))
    main_rows = np.frombuffer(main.rows, np.int64)
    of_main = np.searchsorted(rows, main_rows)
    counted = _row_steps(steps, epochs, of_main, totals)
    averaged = counted.unit == "epoch" and not _rarely_repeats(counted.steps[of_main])
    begins = np.empty(0, np.int64)
    if counted.ordinal:
        longest = max(columns.values(), key=len)
        main_rows = main_rows if len(main) == len(longest) else np.frombuffer(longest.rows, np.int64)
    else:
        begins = _attempt_rows(rows, counted.steps, main_rows, counted.steps[of_main])
    return Clock(rows, main=main_rows, begins=begins, averaged=averaged, **counted._asdict())


def _is_constant(steps: _Floats) -> bool:
    """Whether all steps of many values are the same."""
    return len(steps) >= 4 and bool((steps == steps[0]).all())


def _joined(arrays: list[object]) -> _Floats:
    return np.concatenate([np.frombuffer(values, np.float64) for values in arrays])  # type: ignore[call-overload]


class _RowSteps(NamedTuple):
    """The fields of `Clock` that follow from steps and epochs."""

    steps: _Floats
    ordinal: bool = False
    recounted: bool = False
    reason: str = ""
    unit: str = "step"


def _row_steps(steps: _Floats, epochs: _Floats, main: _Ints, totals: Iterable[int]) -> _RowSteps:
    """Return the step of every row: the log's own where it has some, epochs where it has nothing else."""
    own = steps[main][np.isfinite(steps[main])]
    epoch = np.floor(_filled(epochs))
    if len(own) > 1 and not (own == own[0]).all() and _are_integers(own):
        with_step = main[np.isfinite(steps[main])]
        length = _epoch_length(own, epoch[with_step], totals) if np.isfinite(epochs).any() else 0
        if length and (np.abs(epoch).max() + 1) * length <= _MAX_STEP:
            reason = f"steps restart in each epoch of {length:,} steps, so a step is epoch x {length:,} + step"
            return _RowSteps(_global_steps(steps, epoch, with_step, length), recounted=True, reason=reason)
        return _RowSteps(np.round(_filled(steps)))
    of_main = _filled(epochs)[main] if np.isfinite(epochs).any() else np.empty(0)
    if len(of_main) > 1 and np.floor(of_main[0]) != np.floor(of_main[-1]) and _may_be_steps(of_main):
        reason = "the step does not change, so epochs are used as steps" if len(own) > 1 else ""
        return _RowSteps(epoch, recounted=True, reason=reason, unit="epoch")
    problem = "the log has no steps"
    if len(own) > 1:
        problem = f"every step is {own[0]:g}" if (own == own[0]).all() else "steps are fractions"
    reason = f"{problem}, so values are numbered in their order"
    return _RowSteps(np.zeros(len(steps)), ordinal=len(own) > 1 or len(main) > 1, reason=reason)


def _global_steps(steps: _Floats, epoch: _Floats, main: _Ints, epoch_length: int) -> _Floats:
    """Return steps of the whole training; a metric with a count of its own, as in validation, gets the main one's."""
    counted = _filled(np.where(np.isfinite(steps), epoch * epoch_length + steps, np.nan))
    rows = np.arange(len(counted))
    before = main[np.maximum(np.searchsorted(main, rows, "right") - 1, 0)]
    return np.where(before <= rows, np.maximum(counted, counted[before]), counted)


def _may_be_steps(epochs: _Floats) -> bool:
    """Whether epochs can be used as steps: rarely repeated, or each as often as the others, a few times at most."""
    if _rarely_repeats(np.floor(epochs)):
        return True
    if (epochs != np.floor(epochs)).any():
        return False
    lengths = np.diff(np.flatnonzero(np.diff(epochs, prepend=np.nan, append=np.nan) != 0))
    usual = int(np.median(lengths))
    return usual <= _MAX_PER_EPOCH and float((lengths == usual).mean()) >= 1 - _MAX_REPEATED_SHARE


def _rarely_repeats(steps: _Floats) -> bool:
    return len(steps) < 2 or float((np.diff(steps) == 0).mean()) <= _MAX_REPEATED_SHARE


def _are_integers(steps: _Floats) -> bool:
    """Whether these can be steps: integers, or fractions that stay distinct when they are rounded."""
    if (steps == np.floor(steps)).all():
        return True
    return bool((np.diff(np.round(steps)) == 0).mean() <= _MAX_REPEATED_SHARE)


def _epoch_length(steps: _Floats, epochs: _Floats, totals: Iterable[int]) -> int:
    """Return the number of steps in an epoch, if they restart in each; else 0.

    The log's own total, where it has one that is large enough; else an estimate from the last step and the distance
    between steps: 0, 100, … 900 are epochs of 1,000 steps, and 0, 100, … 900, 937 are epochs of 938.
    """
    ahead = np.diff(steps)
    back = ahead < 0
    if not back.any():
        return 0
    next_epoch = np.diff(np.floor(epochs)) > 0
    if (back & next_epoch).sum() < 0.8 * max(1, back.sum()) or (back & next_epoch).sum() < 0.5 * next_epoch.sum():
        return 0
    first, last = int(steps.min()), int(steps.max())
    total = next((total for total in totals if total >= last), 0)
    if total:
        return total if first > 0 or total > last else total + 1
    onward = ahead[ahead > 0]
    usual = float(np.median(onward)) if len(onward) else 1.0
    to_last = ahead[np.flatnonzero(steps[1:] == last)]
    even = bool(len(to_last)) and float(to_last[0]) == usual
    return last - first + int(usual) if even and first in (0, 1, usual) else last + (first == 0)


def _filled(values: _Floats) -> _Floats:
    """Fill gaps with the last finite value, at the beginning with the first."""
    finite = np.isfinite(values)
    if not finite.any():
        return np.zeros(len(values))
    places = np.maximum.accumulate(np.where(finite, np.arange(len(values)), -1))
    filled: _Floats = values[np.where(places < 0, int(np.argmax(finite)), places)]
    return filled


def _attempt_rows(rows: _Ints, steps: _Floats, main_rows: _Ints, main_steps: _Floats) -> _Ints:
    """Return the rows at which the step goes back for good."""
    attempts = number_attempts(main_steps.astype(np.int64))
    begins = []
    for place in np.flatnonzero(np.diff(attempts) > 0):
        before, first = main_rows[place], main_rows[place + 1]
        between = np.flatnonzero((rows > before) & (rows < first) & (steps <= main_steps[place + 1]))
        begins.append(int(rows[between[0]]) if len(between) else int(first))
    return np.asarray(begins, np.int64)
