"""Compare two runs layer by layer, aligned at the onset of their trouble.

Each quantity by layer is folded into a few hundred columns. Both runs get the same layers in the same order and the
same columns. The extreme of a single step is in its column, a non-finite value is never lost, and memory does not grow
with the length of a run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import restore_infinities
from mlflow_stability.vocabulary.measured.layer_comparison import (
    QUANTITY_TITLES,
    Cells,
    FirstNonFinite,
    LargestGap,
    LayerComparison,
    columns_of_run,
)
from mlflow_stability.vocabulary.result import RunCard
from mlflow_stability.vocabulary.run import Metric, RunHistory

BY_LAYER = tuple(QUANTITY_TITLES)
SMALLEST = frozenset({"attention_entropy"})
"""For these a column keeps the smallest value: attention collapses to zero."""
MAX_LAYERS = 2048
MAX_COLUMNS = 384
"""Before columns are joined."""


@dataclass(frozen=True, slots=True)
class StepColumns:
    zero: int
    """The step at which column 0 begins."""
    width: int
    begin: int
    """The number of the first column."""
    columns: int

    def places(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of steps, from 0; outside of the columns -1."""
        places = np.floor_divide(steps - self.zero, self.width) - self.begin
        return np.where((places >= 0) & (places < self.columns), places, -1)


@dataclass(frozen=True, slots=True, eq=False)
class LayerCourse:
    quantity: str
    layers: tuple[str, ...]
    cells: Cells
    left_out: int = 0
    """Number of layers beyond the maximum."""


def step_columns_of(first: RunCard, second: RunCard) -> tuple[StepColumns, StepColumns] | None:
    """Return the columns of each run; None where one of them has no steps."""
    onset = first.onset if first.onset is not None else second.onset
    other = second.onset if second.onset is not None else onset
    zeros = (0, 0) if onset is None or other is None else (onset, other)
    begins, ends = [], []
    for card, zero in zip((first, second), zeros, strict=True):
        if card.first_step is None or card.last_step is None:
            return None
        begins.append(card.first_step - zero)
        ends.append(card.last_step - zero)
    low, high = min(begins), max(ends)
    width = max(1, -(-(high - low + 1) // MAX_COLUMNS))
    begin, end = low // width, high // width
    return StepColumns(zeros[0], width, begin, end - begin + 1), StepColumns(zeros[1], width, begin, end - begin + 1)


def layer_courses(
    history: RunHistory, columns: StepColumns, is_layer: Callable[[str], bool] = bool
) -> Mapping[str, LayerCourse]:
    courses = {}
    for quantity in BY_LAYER:
        metrics = [
            metric
            for metric in history.metrics
            if metric.meaning.quantity == quantity
            and is_layer(metric.meaning.place)
            and not metric.meaning.duplicate_of
        ]
        if not history.complete or history.format.startswith("mlflow"):  # which lists metrics alphabetically
            metrics.sort(key=lambda metric: _natural_order(metric.meaning.place))
        course = _course(quantity, metrics, columns)
        if course.layers and not np.isnan(course.cells).all():
            courses[quantity] = course
    return courses


def _course(quantity: str, metrics: list[Metric], columns: StepColumns) -> LayerCourse:
    rows: dict[str, int] = {}
    kept = []
    for metric in metrics:
        place = metric.meaning.place
        if place in rows or len(rows) < MAX_LAYERS:
            rows.setdefault(place, len(rows))
            kept.append(metric)
    cells: Cells = np.full((len(rows), columns.columns), np.nan, np.float32)
    fold = np.fmin if quantity in SMALLEST else np.fmax
    for metric in kept:
        row = cells[rows[metric.meaning.place]]
        places = columns.places(metric.series.steps)
        values, places = restore_infinities(metric.series.values)[places >= 0], places[places >= 0]
        finite = np.isfinite(values)
        with np.errstate(over="ignore"):
            fold.at(row, places[finite], values.astype(np.float32)[finite])
        row[places[~finite]] = np.inf
    return LayerCourse(quantity, tuple(rows), cells, len(metrics) - len(kept))


def _natural_order(name: str) -> list[tuple[int, str]]:
    """Sort layer 2 before layer 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def layers_beside(
    first: Mapping[str, LayerCourse],
    second: Mapping[str, LayerCourse],
    columns: tuple[StepColumns, StepColumns],
    cards: tuple[RunCard, RunCard],
) -> tuple[LayerComparison, ...]:
    return tuple(
        _compare(first[quantity], second[quantity], columns, cards)
        for quantity in BY_LAYER
        if quantity in first and quantity in second
    )


def lacking(first: Mapping[str, LayerCourse], second: Mapping[str, LayerCourse], names: tuple[str, str]) -> list[str]:
    """Return a sentence for each quantity that cannot be compared, and why."""
    if not first and not second:
        return ["Layers not compared: neither run has measurements by layer."]
    missing = []
    for quantity in BY_LAYER:
        has = (quantity in first, quantity in second)
        if has == (False, False):
            if quantity == "attention_entropy":
                missing.append(f"Neither run has {QUANTITY_TITLES[quantity].lower()}.")
        elif not all(has):
            without, with_it = (names[1], names[0]) if has[0] else (names[0], names[1])
            missing.append(f"{without} has no {QUANTITY_TITLES[quantity].lower()} to compare with {with_it}.")
    omitted = [
        f"{course.left_out:,} rows of {QUANTITY_TITLES[course.quantity].lower()} were omitted (too many)."
        for course in (*first.values(), *second.values())
        if course.left_out
    ]
    return [*missing, *omitted]


def _compare(
    first: LayerCourse, second: LayerCourse, columns: tuple[StepColumns, StepColumns], cards: tuple[RunCard, RunCard]
) -> LayerComparison:
    layers = _merge_layers(first.layers, second.layers)
    smallest = first.quantity in SMALLEST
    cells = [_in_rows(course, layers) for course in (first, second)]
    joined = max(map(_columns_to_join, cells))
    begin, width = columns[0].begin // joined, columns[0].width * joined
    lead = columns[0].begin - begin * joined  # zero stays at the edge of a column
    cells = [_join_columns(table, lead, joined, smallest) for table in cells]
    spans = _span(cards[0], columns[0]), _span(cards[1], columns[1])
    own = [columns_of_run(table, begin * width, width, span) for table, span in zip(cells, spans, strict=True)]
    low, high = min(low for low, _ in own), max(high for _, high in own)
    cells = [table[:, low:high] for table in cells]
    offsets = ((begin + np.arange(low, high)) * width).tolist()
    return LayerComparison(
        first.quantity,
        layers,
        int(offsets[0]),
        width,
        (columns[0].zero, columns[1].zero),
        any(card.onset is not None for card in cards),
        cells[0],
        cells[1],
        smallest,
        _farthest(layers, offsets, cells, smallest),
        (_broken(layers, offsets, cells[0]), _broken(layers, offsets, cells[1])),
        (cards[0].onset, cards[1].onset),
        spans,
        (frozenset(layers).difference(first.layers), frozenset(layers).difference(second.layers)),
    )


def _span(card: RunCard, columns: StepColumns) -> tuple[int, int]:
    """Return the first and the last step, counted from zero."""
    assert card.first_step is not None
    assert card.last_step is not None
    return card.first_step - columns.zero, card.last_step - columns.zero


def _merge_layers(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    """Return the layers of both; one that only the second has stays after the layer before it there."""
    order = list(first)
    ordered = set(order)
    place = 0
    for layer in second:
        if layer in ordered:
            place = order.index(layer) + 1
        else:
            order.insert(place, layer)
            place += 1
    return tuple(order)


def _in_rows(course: LayerCourse, layers: Sequence[str]) -> Cells:
    row = {layer: number for number, layer in enumerate(course.layers)}
    blank = np.full((1, course.cells.shape[1]), np.nan, np.float32)
    return np.concatenate([course.cells, blank])[[row.get(layer, -1) for layer in layers]]


def _columns_to_join(cells: Cells) -> int:
    """Return how many columns have to be joined so that almost every layer has a value in each."""
    measured = np.flatnonzero(~np.isnan(cells).all(axis=0))
    rows = cells[~np.isnan(cells).all(axis=1)]
    if not len(measured) or not len(rows):
        return 1
    span = int(measured[-1] - measured[0]) + 1
    usual = float(np.median(np.count_nonzero(~np.isnan(rows), axis=1)))
    return max(1, int(np.ceil((span - 1) / max(1.0, usual - 1)))) if usual > 1 else span


def _join_columns(cells: Cells, lead: int, joined: int, smallest: bool) -> Cells:
    if joined == 1:
        return cells
    rows, columns = cells.shape
    padded = np.full((rows, -(-(lead + columns) // joined) * joined), np.nan, np.float32)
    padded[:, lead : lead + columns] = cells
    blocks = padded.reshape(rows, -1, joined)
    if not smallest:
        return np.asarray(np.fmax.reduce(blocks, axis=2), np.float32)
    lowest = np.fmin.reduce(blocks, axis=2)  # an infinity is no small value, but must stay visible
    return np.asarray(np.where(np.isinf(blocks).any(axis=2), np.inf, lowest), np.float32)


def _farthest(
    layers: Sequence[str], offsets: Sequence[int], cells: Sequence[Cells], smallest: bool
) -> LargestGap | None:
    first, second = (table.astype(np.float64) for table in cells)
    comparable = np.isfinite(first) & np.isfinite(second)
    if not smallest:
        comparable &= (first > 0) & (second > 0)
    if not comparable.any():
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.abs(first - second) if smallest else np.abs(np.log(first) - np.log(second))
    row, column = np.unravel_index(int(np.argmax(np.where(comparable, apart, -1.0))), first.shape)
    return LargestGap(layers[int(row)], offsets[int(column)], float(first[row, column]), float(second[row, column]))


def _broken(layers: Sequence[str], offsets: Sequence[int], cells: Cells) -> FirstNonFinite | None:
    broken = np.isinf(cells)
    if not broken.any():
        return None
    column = int(np.flatnonzero(broken.any(axis=0))[0])
    row = int(np.flatnonzero(broken[:, column])[0])
    return FirstNonFinite(int(broken.any(axis=1).sum()), layers[row], offsets[column])
