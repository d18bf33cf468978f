"""One quantity by layer of two runs, on one grid: the same layers, the same columns, one scale of colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Cells = NDArray[np.float32]
"""By layer and column: infinite where a value was not finite, NaN where nothing was measured."""
INNER = (1.0, 99.0)
"""Percentiles at which colours end, so that one exploding layer does not make all others look alike."""
DECADES = 0.5
"""The least that logarithmic colours span, in powers of ten."""
EVERYWHERE = (-(2**63) + 1, 2**63 - 1)
"""The span of a run of which nobody said where it began and ended."""
OUTSIDE = "outside of the run"
"""What cells are called that lie before the first step of a run or behind its last."""


def own_columns(cells: Cells, begin: int, width: int, span: tuple[int, int]) -> tuple[int, int]:
    """The first column of a run with this span, and the one behind its last.

    A column that it has but some steps of, at either end, and no value, is none: nothing was due on them.
    """
    columns = cells.shape[1]
    first = min(columns, max(0, (span[0] - begin) // width))
    end = min(columns, max(first, (span[1] - begin) // width + 1))
    there: NDArray[np.bool_] = np.any(~np.isnan(cells), axis=0)
    if end > first and begin + first * width < span[0] and not there[first]:
        first += 1
    if end > first and begin + end * width - 1 > span[1] and not there[end - 1]:
        end -= 1
    return first, end


@dataclass(frozen=True, slots=True)
class Farthest:
    """Where two runs are farthest apart in one quantity."""

    layer: str
    offset: int
    """The first step of the column, counted from the zero of either run."""
    first: float
    second: float
    """What the cells of the two runs hold there."""


@dataclass(frozen=True, slots=True)
class BrokenAt:
    """Where a quantity of one run was not finite for the first time."""

    layers: int
    """How many layers were so at any time."""
    layer: str
    """The first of them, from the input of the model on."""
    offset: int
    """The first step of the column, counted from the zero of the run."""


@dataclass(frozen=True, slots=True, eq=False)
class LayersBeside:
    """One quantity of two runs."""

    quantity: str
    """``grad_norm``, ``attention_entropy``."""
    layers: tuple[str, ...]
    """From the input of the model to its output; for attention a name for each head. Of different models, all."""
    begin: int
    """The first step of the first column, counted from the zero of either run."""
    width: int
    """How many steps fall into a column."""
    zeros: tuple[int, int]
    """The step of each run that lies at zero: its onset; where only the other had trouble, the step of that onset."""
    aligned: bool
    """Whether zero is an onset; False: no run had trouble, and columns count from step 0."""
    first: Cells
    second: Cells
    smallest: bool = False
    """Whether a cell holds the smallest value of its steps, as for an entropy, that collapses; else the largest."""
    farthest: Farthest | None = None
    """None where they have no finite value in common."""
    broken: tuple[BrokenAt | None, BrokenAt | None] = (None, None)
    """For each run where it was not finite; None where it always was."""
    onsets: tuple[int | None, int | None] = (None, None)
    """For each run the step of its onset; None for one that had no trouble."""
    spans: tuple[tuple[int, int], tuple[int, int]] = (EVERYWHERE, EVERYWHERE)
    """For each run its first and its last step, counted from its zero."""
    absent: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    """For each run the layers, or heads, that only the other one has."""

    @property
    def columns(self) -> int:
        """How many columns there are."""
        return int(self.first.shape[1])

    @property
    def logarithmic(self) -> bool:
        """Whether colours go by the logarithm: norms and ratios span decades, an entropy does not."""
        return not self.smallest

    @property
    def colour_limits(self) -> tuple[float, float]:
        """The values at which the colours of both runs end."""
        cells = np.concatenate([self.first.ravel(), self.second.ravel()]).astype(np.float64)
        known = cells[np.isfinite(cells) & ((cells > 0) | self.smallest)]
        if not len(known):
            return 0.1, 10.0
        if self.smallest:
            low, high = min(0.0, float(known.min())), float(known.max())
            return low, high if high > low else low + 1.0
        low, high = np.percentile(np.log10(known), INNER).tolist()
        if high - low < DECADES:
            low, high = (low + high - DECADES) / 2, (low + high + DECADES) / 2
        return 10.0 ** max(low, -300.0), 10.0 ** min(high, 300.0)

    @property
    def row(self) -> str:
        """What a row is: ``layer``, ``head``."""
        return "head" if self.quantity == "attention_entropy" else "layer"

    @property
    def onset_in_words(self) -> tuple[str, str]:
        """For each run what its columns are counted from: ``the onset, step 120``."""
        if not self.aligned:
            return "step 0", "step 0"
        own, others = "the onset, step {:,}", "step {:,}, the onset of the other run"
        one, other = (
            (others if mine is None and theirs is not None else own).format(zero)
            for mine, theirs, zero in zip(self.onsets, reversed(self.onsets), self.zeros, strict=True)
        )
        return one, other

    @property
    def columns_of(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """For each run the first of its columns, and the one behind its last."""
        one, other = (
            own_columns(cells, self.begin, self.width, span)
            for cells, span in zip((self.first, self.second), self.spans, strict=True)
        )
        return one, other

    def steps_within(self, offset: int, spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """The first and the last step of the column at `offset` that one of these spans reaches."""
        first = max(offset, min(low for low, _ in spans))
        return first, max(first, min(offset + self.width - 1, max(high for _, high in spans)))

    def without_colour(self, number: int) -> dict[str, NDArray[np.bool_]]:
        """Where the first run (0) or the second (1) has no value to give a colour, by what there is instead."""
        cells = (self.first, self.second)[number]
        begin, end = self.columns_of[number]
        outside = np.zeros(cells.shape, bool)
        outside[:, :begin] = outside[:, end:] = True
        absent = np.repeat([[layer in self.absent[number]] for layer in self.layers], cells.shape[1], axis=1)
        return {
            "not finite": np.isinf(cells),
            "zero": (cells == 0) & (not self.smallest),
            f"absent {self.row}": absent.reshape(cells.shape) & ~outside,
            "not measured": np.isnan(cells) & ~outside & ~absent.reshape(cells.shape),
            OUTSIDE: outside,
        }

    def shares(self, cells: Cells) -> NDArray[np.float64]:
        """Where each value stands between the limits, from 0 to 1; NaN for what has no place there."""
        low, high = self.colour_limits
        values = np.where(np.isfinite(cells), cells, np.nan).astype(np.float64)
        if self.logarithmic:
            with np.errstate(invalid="ignore", divide="ignore"):
                values = np.log(np.where(values > 0, values, np.nan))
            low, high = math.log(low), math.log(high)
        return np.asarray(np.clip((values - low) / (high - low), 0.0, 1.0), np.float64)
