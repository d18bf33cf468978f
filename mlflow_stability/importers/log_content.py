"""Collect the values of a log, column by column, while it is read.

Memory is bounded whatever the size of the log: where it has more values than fit, of every four consecutive values of
the longest metrics the lowest and the highest are kept, so that no extreme and no NaN is lost.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.vocabulary.result import Finding

MAX_VALUES = 8_000_000  # values that are held at once, at 40 bytes each
MAX_METRICS = 5_000  # a log with more names makes up a name for every line
_MIN_THINNED_LENGTH = 50_000
_UNKNOWN = math.nan


class Column:
    """One metric: for each value its row in the log, and the step, epoch and time of the row; NaN or 0 if unknown."""

    __slots__ = ("epochs", "rows", "steps", "times", "values")

    def __init__(self) -> None:
        self.rows: array[int] = array("q")
        self.steps: array[float] = array("d")
        self.epochs: array[float] = array("d")
        self.values: array[float] = array("d")
        self.times: array[float] = array("d")

    def __len__(self) -> int:
        return len(self.rows)

    def append(self, row: int, step: float, epoch: float, value: float, time: float) -> None:
        self.rows.append(row)
        self.steps.append(step)
        self.epochs.append(epoch)
        self.values.append(value)
        self.times.append(time)

    def extend(self, rows: NDArray[np.int64], *others: NDArray[np.float64] | float) -> None:
        """Add many: rows, then steps, epochs, values and times; a single number holds for all of them."""
        self.rows.frombytes(np.ascontiguousarray(rows, np.int64).tobytes())
        for own, new in zip((self.steps, self.epochs, self.values, self.times), others, strict=True):
            whole = np.full(len(rows), new) if isinstance(new, float) else np.ascontiguousarray(new, np.float64)
            own.frombytes(whole.tobytes())

    def merge(self, other: Column) -> None:
        """Add another column's values in the order of the rows."""
        rows = np.concatenate([np.array(self.rows), np.array(other.rows)])
        order = np.argsort(rows, kind="stable")
        for name in self.__slots__:
            first, second = np.array(getattr(self, name)), np.array(getattr(other, name))
            self._set(name, np.concatenate([first, second])[order])

    def thin(self) -> None:
        """Keep the lowest and the highest of every four consecutive values; NaN counts as both.

        The last value is kept: it shows where the training ended.
        """
        whole = max(0, len(self) - 1) // 4 * 4
        values = np.frombuffer(self.values, np.float64)[:whole].reshape(-1, 4)
        lowest = np.where(np.isnan(values), -np.inf, values).argmin(axis=1)
        highest = np.where(np.isnan(values), np.inf, values).argmax(axis=1)
        same = lowest == highest
        highest = np.where(same, (lowest + 1) % 4, highest)
        first = np.arange(0, whole, 4)
        kept = np.sort(np.concatenate([first + lowest, first + highest, np.arange(whole, len(self))]))
        for name in self.__slots__:
            self._set(name, np.array(getattr(self, name))[kept])

    def _set(self, name: str, values: NDArray[np.generic]) -> None:
        typecode = getattr(self, name).typecode
        new = array(typecode)
        new.frombytes(values.astype(typecode).tobytes())
        setattr(self, name, new)


@dataclass(frozen=True, slots=True)
class LogEvent:
    """A finding that a log reports in words."""

    finding: Finding
    row: int  # the last row of values before it
    own_step: bool = False  # whether the words name the step; else it is that of the row


@dataclass(slots=True, eq=False)
class LogContent:
    """The values of one log, column by column, and what it says in words."""

    columns: dict[str, Column] = field(default_factory=dict)
    thinned: bool = False
    names_left_out: int = 0
    reported: list[LogEvent] = field(default_factory=list)
    outcome: str = ""
    outcome_detail: str = ""
    notes: list[str] = field(default_factory=list)
    doubts: dict[str, str] = field(default_factory=dict)  # why the values of a metric may be no curve, by its name
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    size: int = 0  # number of values
    rows_are_lines: bool = False  # whether the number of a row is its line in the log, counted from 1
    row_lines: NDArray[np.int64] | None = None
    """The line of each row, counted from 0, of a log whose rows are in another order than its lines."""
    starts: list[int] = field(default_factory=list)
    """Lines that may begin another training, as the next fold of a cross-validation."""
    _totals: Counter[int] = field(default_factory=Counter)

    def lines_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the lines of these rows; None where the log has no lines."""
        if self.row_lines is not None:
            return self.row_lines[rows]
        return rows if self.rows_are_lines else None

    def count_total(self, total: float) -> None:
        """Count the number behind a step's slash: 2983 of `200/2983 batches`."""
        if len(self._totals) < MAX_METRICS and math.isfinite(total):
            self._totals[int(total)] += 1

    def totals(self) -> list[int]:
        """Return those numbers, the most common first."""
        return [total for total, _ in self._totals.most_common()]

    def add_row(
        self, row: int, values: Mapping[str, float], step: float = _UNKNOWN, epoch: float = _UNKNOWN, time: float = 0.0
    ) -> None:
        for name, value in values.items():
            column = self.columns.get(name) or self._new(name)
            if column is not None:
                column.append(row, step, epoch, value, time)
        self.size += len(values)
        self._make_room()

    def add_column(
        self,
        name: str,
        rows: NDArray[np.int64],
        values: NDArray[np.float64],
        steps: NDArray[np.float64] | float = _UNKNOWN,
        epochs: NDArray[np.float64] | float = _UNKNOWN,
        times: NDArray[np.float64] | float = 0.0,
    ) -> None:
        column = self.columns.get(name) or self._new(name)
        if column is not None and len(rows):
            column.extend(rows, steps, epochs, values, times)
        self.size += len(rows)
        self._make_room()

    def _new(self, name: str) -> Column | None:
        if len(self.columns) >= MAX_METRICS:
            self.names_left_out += 1
            return None
        return self.columns.setdefault(name, Column())

    def merge(self, other: LogContent) -> None:
        """Add another part of the same log, in the order of its rows."""
        for name, part in other.columns.items():
            column = self.columns.get(name) or self._new(name)
            if column is not None:
                column.merge(part)
        self.size += other.size
        self._totals.update(other._totals)
        self.thinned = self.thinned or other.thinned
        self._make_room()

    def _make_room(self) -> None:
        """Thin until the values fit: many may have come at once."""
        size = self.size + 1
        while MAX_VALUES < self.size < size:
            size = self.size
            self.thin()

    def thin(self) -> None:
        """Keep the extremes of long columns."""
        for column in self.columns.values():
            if len(column) > _MIN_THINNED_LENGTH:
                column.thin()
                self.thinned = True
        self.size = sum(map(len, self.columns.values()))


@dataclass(slots=True)
class LogLine:
    """The values of one line or row, with the step and epoch that it names."""

    values: dict[str, float] = field(default_factory=dict)
    step: float = math.nan
    total: float = math.nan  # number of all steps: 2983 of `200/2983 batches`
    epoch: float = math.nan
    time: float = 0.0
    form: str = ""  # `json_lines`, `fairseq`, `key_value_table` or `text`
    label: str = ""  # the words in front of the first named number
    words: str = ""  # the words in front of the first value, of lines of names with numbers

    @property
    def has_step(self) -> bool:
        return self.step == self.step
