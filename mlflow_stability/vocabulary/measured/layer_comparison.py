"""One quantity of two runs by layer and step, on the same grid and colour scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

QUANTITY_TITLES = {
    "grad_norm": "Gradient norm by layer",
    "update_ratio": "Update ratio by layer",
    "param_norm": "Parameter norm by layer",
    "attention_entropy": "Attention entropy by head",
}
"""What two runs are compared in."""
Cells = NDArray[np.float32]  # by layer and column: infinite where a value was not finite, NaN where none was measured
COLOUR_PERCENTILES = (1.0, 99.0)  # percentiles at which colours end, so that an exploding layer leaves others distinct
MIN_DECADES = 0.5  # smallest range of logarithmic colours, in powers of ten
EVERYWHERE = (-(2**63) + 1, 2**63 - 1)  # span of a run whose first and last step are unknown
OUTSIDE = "outside of the run"  # legend of cells before the first step of a run or after its last


def columns_of_run(cells: Cells, begin: int, width: int, span: tuple[int, int]) -> tuple[int, int]:
    """Return the first column of a run with this span, and the one after its last.

    A column at either end that has only some of its steps, and no value, is left out: no measurement was due in it.
    """
    columns = cells.shape[1]
    first = min(columns, max(0, (span[0] - begin) // width))
    end = min(columns, max(first, (span[1] - begin) // width + 1))
    has_values: NDArray[np.bool_] = np.any(~np.isnan(cells), axis=0)
    if end > first and begin + first * width < span[0] and not has_values[first]:
        first += 1
    if end > first and begin + end * width - 1 > span[1] and not has_values[end - 1]:
        end -= 1
    return first, end


@dataclass(frozen=True, slots=True)
class LargestGap:
    """Where two runs differ most in one quantity."""

    layer: str
    offset: int  # the first step of the column, counted from the zero of either run
    first: float  # the values of the two runs there
    second: float


@dataclass(frozen=True, slots=True)
class FirstNonFinite:
    """Where a quantity of one run was first not finite."""

    layers: int  # number of layers with a non-finite value at any step
    layer: str  # the first of them, from the input of the model on
    offset: int  # the first step of the column, counted from the zero of the run


@dataclass(frozen=True, slots=True, eq=False)
class LayerComparison:
    """One quantity of two runs."""

    quantity: str  # ``grad_norm``, ``attention_entropy``
    layers: tuple[str, ...]
    """From the input of the model to its output; for attention a name for each head. The layers of both models."""
    begin: int  # the first step of the first column, counted from the zero of either run
    width: int  # number of steps in a column
    zeros: tuple[int, int]
    """For each run the step that counts as zero: its onset, or that of the other run where only that had trouble."""
    aligned: bool  # whether zero is an onset; False: no run had trouble, and columns count from step 0
    first: Cells
    second: Cells
    smallest: bool = False  # whether a cell holds the smallest value of its steps, as for an entropy; else the largest
    farthest: LargestGap | None = None  # None where no cell is finite in both
    broken: tuple[FirstNonFinite | None, FirstNonFinite | None] = (None, None)
    """For each run where it was first not finite; None where it always was finite."""
    onsets: tuple[int | None, int | None] = (None, None)  # for each run the step of its onset; None without trouble
    spans: tuple[tuple[int, int], tuple[int, int]] = (EVERYWHERE, EVERYWHERE)
    """For each run its first and last step, counted from its zero."""
    absent: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    """For each run the layers, or heads, that only the other one has."""

    @property
    def title(self) -> str:
        """``Gradient norm by layer``."""
        return QUANTITY_TITLES[self.quantity]

    @property
    def measure(self) -> str:
        """``gradient norm``."""
        return self.title.partition(" by ")[0].lower()

    @property
    def columns(self) -> int:
        return int(self.first.shape[1])

    @property
    def logarithmic(self) -> bool:
        """Whether colours are logarithmic: norms and ratios span decades, an entropy does not."""
        return not self.smallest

    @property
    def colour_limits(self) -> tuple[float, float]:
        """The values at which the colour scale of both runs ends."""
        cells = np.concatenate([self.first.ravel(), self.second.ravel()]).astype(np.float64)
        values = cells[np.isfinite(cells)]
        if self.logarithmic or not len(values):
            return logarithmic_limits(values)
        low, high = min(0.0, float(values.min())), float(values.max())
        return low, high if high > low else low + 1.0

    @property
    def row(self) -> str:
        """``layer`` or ``head``."""
        return "head" if self.quantity == "attention_entropy" else "layer"

    @property
    def onset_in_words(self) -> tuple[str, str]:
        """For each run the zero of its columns: ``the onset, step 120``."""
        if not self.aligned:
            return "step 0", "step 0"
        own, others = "the onset, step {:,}", "step {:,}, the onset of the other run"
        first, second = (
            (others if onset is None and other_onset is not None else own).format(zero)
            for onset, other_onset, zero in zip(self.onsets, reversed(self.onsets), self.zeros, strict=True)
        )
        return first, second

    @property
    def columns_of(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """For each run its first column, and the one after its last."""
        first, second = (
            columns_of_run(cells, self.begin, self.width, span)
            for cells, span in zip((self.first, self.second), self.spans, strict=True)
        )
        return first, second

    def steps_within(self, offset: int, spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Return the first and last step of the column at `offset` that any of these spans reaches."""
        first = max(offset, min(low for low, _ in spans))
        return first, max(first, min(offset + self.width - 1, max(high for _, high in spans)))

    def without_colour(self, number: int) -> dict[str, NDArray[np.bool_]]:
        """Return masks of the cells of the first run (0) or the second (1) that have no colour, by reason."""
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


def logarithmic_limits(values: NDArray[Any]) -> tuple[float, float]:
    """Return the values at which a logarithmic colour scale ends; those that are not above zero have no place on it."""
    positive = values[np.isfinite(values) & (values > 0)].astype(np.float64)
    if not len(positive):
        return 0.1, 10.0
    low, high = np.percentile(np.log10(positive), COLOUR_PERCENTILES).tolist()
    if high - low < MIN_DECADES:
        low, high = (low + high - MIN_DECADES) / 2, (low + high + MIN_DECADES) / 2
    return 10.0 ** max(low, -300.0), 10.0 ** min(high, 300.0)
