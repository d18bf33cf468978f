"""Everything that a log was found to hold, column by column, while it is being read.

In: values with their row, and the step, epoch and time that the row has, if any. Out: arrays. Guarantees: memory is
bounded whatever the size of the log; where a log has more values than fit, of every four consecutive ones of the
longest metrics the lowest and the highest are kept, so that no extreme and no not-a-number is lost.
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

MOST_VALUES = 8_000_000
"""How many values are held at once, at 40 bytes each."""
MOST_METRICS = 5_000
"""How many names a log may have; a log with more makes up a name for every line."""
_WORTH_THINNING = 50_000
_UNKNOWN = math.nan


class Column:
    """One metric: for each value its row in the log, and what the row says of step, epoch and time."""

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
        """Add one value."""
        self.rows.append(row)
        self.steps.append(step)
        self.epochs.append(epoch)
        self.values.append(value)
        self.times.append(time)

    def extend(self, rows: NDArray[np.int64], *others: NDArray[np.float64] | float) -> None:
        """Add many: rows, then steps, epochs, values and times; a lone number holds for all of them."""
        self.rows.frombytes(np.ascontiguousarray(rows, np.int64).tobytes())
        for kept, new in zip((self.steps, self.epochs, self.values, self.times), others, strict=True):
            whole = np.full(len(rows), new) if isinstance(new, float) else np.ascontiguousarray(new, np.float64)
            kept.frombytes(whole.tobytes())

    def merge(self, other: Column) -> None:
        """Add another column's values, each where its row is."""
        rows = np.concatenate([np.array(self.rows), np.array(other.rows)])
        order = np.argsort(rows, kind="stable")
        for name in self.__slots__:
            mine, others = getattr(self, name), getattr(other, name)
            both = array(mine.typecode)
            both.frombytes(np.concatenate([np.array(mine), np.array(others)]).astype(mine.typecode)[order].tobytes())
            setattr(self, name, both)

    def thin(self) -> None:
        """Of every four consecutive values keep the lowest and the highest; not-a-number counts as both.

        The last value stays: it says how far the training came.
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
            old = getattr(self, name)
            new = array(old.typecode)
            new.frombytes(np.frombuffer(old, np.int64 if old.typecode == "q" else np.float64)[kept].tobytes())
            setattr(self, name, new)


@dataclass(frozen=True, slots=True)
class LogWords:
    """What a log says in words, and where."""

    event: Finding
    row: int
    """The last row of values before it."""
    own_step: bool = False
    """Whether the words name the step; else it is that of the row."""


@dataclass(slots=True, eq=False)
class LogContent:
    """What one log holds."""

    columns: dict[str, Column] = field(default_factory=dict)
    thinned: bool = False
    names_left_out: int = 0
    reported: list[LogWords] = field(default_factory=list)
    """What the log says in words: a step that was skipped, an end that was none."""
    outcome: str = ""
    outcome_detail: str = ""
    notes: list[str] = field(default_factory=list)
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    size: int = 0
    """How many values there are."""
    line_rows: array[int] = field(default_factory=lambda: array("q"))
    """Of a log that is read line by line: the rows at which the distance between rows and lines changes …"""
    line_numbers: array[int] = field(default_factory=lambda: array("q"))
    """… and the line of each of them, counted from 1."""
    _totals: Counter[int] = field(default_factory=Counter)

    def at_line(self, row: int, line: int) -> None:
        """Note which line of the log a row stands in; rows come in their order, and those between follow line by line.

        Where every other line holds values, this is as much memory as two values a row.
        """
        if not self.line_rows or line - row != self.line_numbers[-1] - self.line_rows[-1]:
            self.line_rows.append(row)
            self.line_numbers.append(line)

    def at_lines(self, rows: NDArray[np.int64], lines: NDArray[np.int64]) -> None:
        """Note of many rows, in their order, which lines of the log they stand in."""
        apart = lines - rows
        moved = np.append(True, apart[1:] != apart[:-1]) if len(rows) else np.zeros(0, bool)
        for row, line in zip(rows[moved].tolist(), lines[moved].tolist(), strict=True):
            self.at_line(row, line)

    def forget_lines(self) -> None:
        """Nobody can look the rows up in lines: the output of a notebook, or rows that were skipped unseen."""
        self.line_rows, self.line_numbers = array("q"), array("q")

    def lines_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """The lines in which these rows stand; None where the log has no lines."""
        if not self.line_rows:
            return None
        known, numbers = np.frombuffer(self.line_rows, np.int64), np.frombuffer(self.line_numbers, np.int64)
        at = np.maximum(np.searchsorted(known, rows, "right") - 1, 0)
        return rows - known[at] + numbers[at]

    def count_of(self, total: float) -> None:
        """Note the number behind a step's slash: 2983 of ``200/2983 batches``."""
        if len(self._totals) < MOST_METRICS:
            self._totals[int(total)] += 1

    def count_all_of(self, totals: NDArray[np.float64]) -> None:
        """Note many such numbers, in their order."""
        different, first, counts = np.unique(totals, return_index=True, return_counts=True)
        if len(self._totals) + len(different) >= MOST_METRICS:
            for total in totals.tolist():
                self.count_of(total)
            return
        for at in np.argsort(first).tolist():
            self._totals[int(different[at])] += int(counts[at])

    def totals(self) -> list[int]:
        """Those numbers, the most common first."""
        return [total for total, _ in self._totals.most_common()]

    def add_row(
        self, row: int, values: Mapping[str, float], step: float = _UNKNOWN, epoch: float = _UNKNOWN, time: float = 0.0
    ) -> None:
        """Add what was logged together in a row of this number."""
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
        """Add many values of one metric."""
        column = self.columns.get(name) or self._new(name)
        if column is not None and len(rows):
            column.extend(rows, steps, epochs, values, times)
        self.size += len(rows)
        self._make_room()

    def _new(self, name: str) -> Column | None:
        if len(self.columns) >= MOST_METRICS:
            self.names_left_out += 1
            return None
        return self.columns.setdefault(name, Column())

    def take_over(self, other: LogContent) -> None:
        """Add everything of another part of the same log, in the order of its rows."""
        for name, part in other.columns.items():
            column = self.columns.get(name) or self._new(name)
            if column is not None:
                column.merge(part)
        self.size += other.size
        self._totals.update(other._totals)
        self.thinned = self.thinned or other.thinned
        self._make_room()

    def _make_room(self) -> None:
        """Thin until what is kept fits: many values may have come at once."""
        size = self.size + 1
        while MOST_VALUES < self.size < size:
            size = self.size
            self.thin()

    def thin(self) -> None:
        """Keep the extremes of what is long."""
        for column in self.columns.values():
            if len(column) > _WORTH_THINNING:
                column.thin()
                self.thinned = True
        self.size = sum(map(len, self.columns.values()))
