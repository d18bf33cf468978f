"""Keep one quantity by layer and step, small enough to draw while it is measured.

Each of at most `MAX_COLUMNS` columns has the largest of its values, so that the explosion of a single step is visible
in a run of any length. A value that was not finite is never lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

_MIN_BLOCKS = 8  # names are shortened to the depth at which there are at least this many blocks


@dataclass(frozen=True, slots=True)
class LayerLabel:
    name: str
    first: int
    last: int

    @property
    def middle(self) -> float:
        return (self.first + self.last) / 2


def labels_of(layers: tuple[str, ...], most: int) -> tuple[str, list[LayerLabel]]:
    """Return the common beginning of all names, and at most `most` labels without it."""
    common = _common(layers)
    names = [name[len(common) :] for name in layers]
    if len(names) <= most:
        return common, [LayerLabel(name, row, row) for row, name in enumerate(names)]
    blocks = _blocks(names)
    every = -(-len(blocks) // most)
    return common, _apart(blocks[::every], len(names) / most)


def _common(layers: tuple[str, ...]) -> str:
    """The first parts that all names share, with the dot behind them."""
    if len(layers) < 2:
        return ""
    parts = [name.split(".") for name in layers]
    depth = 0
    while all(len(path) > depth + 1 and path[depth] == parts[0][depth] for path in parts):
        depth += 1
    return "".join(f"{part}." for part in parts[0][:depth])


def _blocks(names: list[str]) -> list[LayerLabel]:
    """Neighbours whose names begin with the same parts, as many parts as give enough blocks."""
    deepest = max(name.count(".") for name in names) + 1
    blocks: list[LayerLabel] = []
    for depth in range(1, deepest + 1):
        blocks, row = [], 0
        for name, group in groupby(".".join(layer.split(".")[:depth]) for layer in names):
            count = len(list(group))
            blocks.append(LayerLabel(name, row, row + count - 1))
            row += count
        if len(blocks) >= _MIN_BLOCKS:
            break
    return blocks


def _apart(blocks: list[LayerLabel], rows: float) -> list[LayerLabel]:
    """Blocks that are at least this many rows from each other; larger ones take precedence."""
    kept: list[LayerLabel] = []
    for block in sorted(blocks, key=lambda block: block.first - block.last):
        if all(abs(block.middle - other.middle) >= rows for other in kept):
            kept.append(block)
    return sorted(kept, key=lambda block: block.first)


MAX_COLUMNS = 384
MAX_LAYERS = 2048  # layers beyond these are left out and counted in `LayerGrid.left_out`

Values = NDArray[np.float32]
"""By layer and column: the largest value; infinite where one was not finite, NaN where nothing was measured."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerGrid:
    quantity: str
    layers: tuple[str, ...]  # from the input of the model to its output
    steps: NDArray[np.int64]  # the first step of each column
    values: Values
    measured: int  # number of steps with a measurement
    last: int = 0
    left_out: int = 0


class LayerSketch:
    """One quantity of all layers while it is measured."""

    def __init__(self, quantity: str) -> None:
        self.quantity = quantity
        self._rows: dict[str, int] = {}
        self._values: Values = np.full((0, MAX_COLUMNS), np.nan, np.float32)
        self._steps = np.zeros(MAX_COLUMNS, np.int64)
        self._columns = self._measured = self._last = 0
        self._width = 1
        self._left_out: set[str] = set()

    @property
    def layers(self) -> tuple[str, ...]:
        return tuple(self._rows)

    def rows(self, layers: Sequence[str]) -> NDArray[np.int64]:
        """Return the rows of these layers, -1 for one beyond `MAX_LAYERS`; keep them, as looking up names is slow."""
        return np.array([self._row(layer) for layer in layers], np.int64)

    def add(self, step: int, rows: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Add the values measured at a step, in the rows that `rows` returned."""
        kept = rows >= 0
        column = self._column(step)
        with np.errstate(over="ignore"):
            shown = np.where(np.isfinite(values), values, np.inf).astype(np.float32)[kept]
        self._values[rows[kept], column] = np.fmax(self._values[rows[kept], column], shown)

    def grid(self, order: Sequence[str] = ()) -> LayerGrid:
        """Return all values; layers named in `order` come in that order, others behind them."""
        layers = tuple(dict.fromkeys([*(layer for layer in order if layer in self._rows), *self._rows]))
        values = self._values[[self._rows[layer] for layer in layers], : self._columns]
        steps = self._steps[: self._columns].copy()
        return LayerGrid(self.quantity, layers, steps, values, self._measured, self._last, len(self._left_out))

    def _row(self, layer: str) -> int:
        row = self._rows.get(layer)
        if row is not None:
            return row
        if len(self._rows) >= MAX_LAYERS:
            self._left_out.add(layer)
            return -1
        row = self._rows[layer] = len(self._rows)
        if row >= len(self._values):
            more = np.full((max(16, len(self._values)), MAX_COLUMNS), np.nan, np.float32)
            self._values = np.concatenate([self._values, more])
        return row

    def _column(self, step: int) -> int:
        """The column of a step; neighbours are merged first where there is no free one."""
        self._measured += step != self._last or not self._columns
        self._last = step
        while True:
            newest = self._columns - 1
            if newest >= 0 and step // self._width == self._steps[newest] // self._width:
                return newest
            if self._columns < MAX_COLUMNS:
                self._steps[self._columns] = step
                self._columns += 1
                return self._columns - 1
            while True:
                self._width *= 2
                places = self._steps // self._width
                starts = np.flatnonzero(np.r_[True, np.diff(places) != 0])
                if len(starts) <= MAX_COLUMNS // 2:
                    break
            kept = np.fmax.reduceat(self._values, starts, axis=1)
            self._steps[: len(starts)] = self._steps[starts]
            self._values[:, : len(starts)] = kept
            self._values[:, len(starts) :] = np.nan
            self._columns = len(starts)


def evened(grid: LayerGrid) -> LayerGrid:
    """Return the grid with columns so wide that nearly every layer is in each, as layers may be measured in turns."""
    columns = len(grid.steps)
    counts = np.sort(np.count_nonzero(~np.isnan(grid.values), axis=1))
    median = int(counts[len(counts) // 2]) if len(counts) else 0
    merged = -(-columns // median) if median else 1
    if merged < 2 or columns < 2:
        return grid
    starts = np.arange(0, max(1, columns - merged + 1), merged)  # remaining columns belong to the last one
    return replace(grid, steps=grid.steps[starts], values=np.fmax.reduceat(grid.values, starts, axis=1))
