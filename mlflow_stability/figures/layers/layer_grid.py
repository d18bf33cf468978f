"""One quantity by layer and step, small enough to draw while it is still being measured.

In: the values of the layers at the steps at which they were measured, in order. Out: a `LayerGrid`. Guarantees: at most
`MOST_COLUMNS` columns are kept, each with the largest of its values, so that the explosion of a single step is seen
in a run of any length; a value that was not finite is never lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_COLUMNS = 384
MOST_LAYERS = 2048
"""Layers beyond these are left out, and `LayerGrid.left_out` says how many."""

Values = NDArray[np.float32]
"""By layer and column: the largest value; infinite where one was not finite, NaN where nothing was measured."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerGrid:
    """One quantity of all layers."""

    quantity: str
    layers: tuple[str, ...]
    """From the input of the model to its output."""
    steps: NDArray[np.int64]
    """The first step of each column."""
    values: Values
    measured: int
    """At how many steps there was anything."""
    last: int = 0
    """The last of these steps."""
    left_out: int = 0


class LayerSketch:
    """One quantity of all layers as far as it has come."""

    def __init__(self, quantity: str) -> None:
        self.quantity = quantity
        self._rows: dict[str, int] = {}
        self._values: Values = np.full((0, MOST_COLUMNS), np.nan, np.float32)
        self._steps = np.zeros(MOST_COLUMNS, np.int64)
        self._columns = self._measured = self._last = 0
        self._width = 1
        self._left_out: set[str] = set()

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers in the order in which they were first seen."""
        return tuple(self._rows)

    def rows(self, layers: Sequence[str]) -> NDArray[np.int64]:
        """The rows of these layers, -1 for one that finds no place; keep them, for names are slow."""
        return np.array([self._row(each) for each in layers], np.int64)

    def add(self, step: int, rows: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Take in what was measured at a step, in the rows that `rows` gave."""
        there = rows >= 0
        column = self._column(step)
        with np.errstate(over="ignore"):
            shown = np.where(np.isfinite(values), values, np.inf).astype(np.float32)[there]
        self._values[rows[there], column] = np.fmax(self._values[rows[there], column], shown)

    def grid(self, order: Sequence[str] = ()) -> LayerGrid:
        """What is known so far; layers named in `order` come in that order, others behind them."""
        known = [each for each in order if each in self._rows]
        layers = [*known, *(each for each in self._rows if each not in set(known))]
        values = self._values[[self._rows[each] for each in layers], : self._columns]
        steps = self._steps[: self._columns].copy()
        return LayerGrid(
            self.quantity, tuple(layers), steps, values, self._measured, self._last, len(self._left_out)
        )  # fmt: skip

    def _row(self, layer: str) -> int:
        row = self._rows.get(layer)
        if row is not None:
            return row
        if len(self._rows) >= MOST_LAYERS:
            self._left_out.add(layer)
            return -1
        row = self._rows[layer] = len(self._rows)
        if row >= len(self._values):
            more = np.full((max(16, len(self._values)), MOST_COLUMNS), np.nan, np.float32)
            self._values = np.concatenate([self._values, more])
        return row

    def _column(self, step: int) -> int:
        """The column of a step; where they have run out, two neighbours become one first."""
        self._measured += step != self._last or not self._columns
        self._last = step
        while True:
            newest = self._columns - 1
            if newest >= 0 and step // self._width == self._steps[newest] // self._width:
                return newest
            if self._columns < MOST_COLUMNS:
                self._steps[self._columns] = step
                self._columns += 1
                return self._columns - 1
            self._merge()

    def _merge(self) -> None:
        while True:
            self._width *= 2
            places = self._steps // self._width
            starts = np.flatnonzero(np.r_[True, np.diff(places) != 0])
            if len(starts) <= MOST_COLUMNS // 2:
                break
        kept = np.fmax.reduceat(self._values, starts, axis=1)
        self._steps[: len(starts)] = self._steps[starts]
        self._values[:, : len(starts)] = kept
        self._values[:, len(starts) :] = np.nan
        self._columns = len(starts)


def evened(grid: LayerGrid) -> LayerGrid:
    """The grid with columns wide enough for nearly every layer to be in each: layers may be measured in turns."""
    columns = len(grid.steps)
    often = np.sort(np.count_nonzero(~np.isnan(grid.values), axis=1))
    usual = int(often[len(often) // 2]) if len(often) else 0
    together = -(-columns // usual) if usual else 1
    if together < 2 or columns < 2:
        return grid
    starts = np.arange(0, max(1, columns - together + 1), together)  # what is left over belongs to the last one
    values = np.fmax.reduceat(grid.values, starts, axis=1)
    return LayerGrid(
        grid.quantity, grid.layers, grid.steps[starts], values, grid.measured, grid.last, grid.left_out
    )  # fmt: skip
