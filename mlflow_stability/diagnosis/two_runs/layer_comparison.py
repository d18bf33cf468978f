"""Lays what two runs have by layer beside each other, aligned at the onset of their trouble.

In: the cards of two runs, which say how far they went and since when they had trouble; then their courses by layer.
Out: a `LayerComparison` for each quantity that both have, and sentences about what one of them lacks. Guarantees: both
have the same layers in the same order and the same columns, every step of both that was measured is in one of them, and
no column is narrower than what was measured asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mlflow_stability.diagnosis.two_runs.layer_timeline import BY_LAYER, SMALLEST, LayerCourse, StepColumns
from mlflow_stability.vocabulary.measured import Cells, FirstNonFinite, LargestGap, LayerComparison, columns_of_run
from mlflow_stability.vocabulary.result import RunCard

COLUMNS = 384
"""At most so many before they are put together."""
IN_WORDS = {
    "grad_norm": "gradient norm by layer",
    "update_ratio": "update ratio by layer",
    "param_norm": "parameter norm by layer",
    "attention_entropy": "attention entropy by head",
}


def step_columns_of(first: RunCard, second: RunCard) -> tuple[StepColumns, StepColumns] | None:
    """For each run its columns; None where one of them has no steps."""
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
    width = max(1, -(-(high - low + 1) // COLUMNS))
    begin, end = low // width, high // width
    return StepColumns(zeros[0], width, begin, end - begin + 1), StepColumns(zeros[1], width, begin, end - begin + 1)


def layers_beside(
    first: Mapping[str, LayerCourse],
    second: Mapping[str, LayerCourse],
    rulers: tuple[StepColumns, StepColumns],
    cards: tuple[RunCard, RunCard],
) -> tuple[LayerComparison, ...]:
    """What both have by layer; `rulers` are those of these cards."""
    return tuple(
        _beside(first[quantity], second[quantity], rulers, cards)
        for quantity in BY_LAYER
        if quantity in first and quantity in second
    )


def lacking(first: Mapping[str, LayerCourse], second: Mapping[str, LayerCourse], names: tuple[str, str]) -> list[str]:
    """A sentence for each thing that cannot be laid beside each other, and why."""
    if not first and not second:
        return ["Layers not compared: neither run has measurements by layer."]
    said = []
    for quantity in BY_LAYER:
        has = (quantity in first, quantity in second)
        if has == (False, False):
            if quantity == "attention_entropy":
                said.append(f"Neither run has {IN_WORDS[quantity]}.")
        elif not all(has):
            without, with_it = (names[1], names[0]) if has[0] else (names[0], names[1])
            said.append(f"{without} has no {IN_WORDS[quantity]} to compare with {with_it}.")
    left_out = [(each.left_out, IN_WORDS[each.quantity]) for each in (*first.values(), *second.values())]
    return said + [f"{count:,} rows of {what} were omitted (too many)." for count, what in left_out if count]


def _beside(
    one: LayerCourse, other: LayerCourse, rulers: tuple[StepColumns, StepColumns], cards: tuple[RunCard, RunCard]
) -> LayerComparison:
    layers = _merged(one.layers, other.layers)
    smallest = one.quantity in SMALLEST
    cells = [_in_rows(each, layers) for each in (one, other)]
    ruler = rulers[0]
    together = max(_sparse(each) for each in cells)
    begin, width = ruler.begin // together, ruler.width * together
    lead = ruler.begin - begin * together  # zero stays at the edge of a column
    cells = [_widened(each, lead, together, smallest) for each in cells]
    spans = _span(cards[0], rulers[0]), _span(cards[1], rulers[1])
    own = [columns_of_run(each, begin * width, width, span) for each, span in zip(cells, spans, strict=True)]
    low, high = min(first for first, _ in own), max(end for _, end in own)
    cells = [each[:, low:high] for each in cells]
    offsets = (begin + np.arange(low, high)) * width
    return LayerComparison(
        one.quantity,
        layers,
        int(offsets[0]),
        width,
        (rulers[0].zero, rulers[1].zero),
        any(card.onset is not None for card in cards),
        cells[0],
        cells[1],
        smallest,
        _farthest(layers, offsets.tolist(), cells, smallest),
        (_broken(layers, offsets.tolist(), cells[0]), _broken(layers, offsets.tolist(), cells[1])),
        (cards[0].onset, cards[1].onset),
        spans,
        (frozenset(layers).difference(one.layers), frozenset(layers).difference(other.layers)),
    )


def _span(card: RunCard, ruler: StepColumns) -> tuple[int, int]:
    """The first and the last step, counted from zero."""
    assert card.first_step is not None
    assert card.last_step is not None
    return card.first_step - ruler.zero, card.last_step - ruler.zero


def _merged(one: Sequence[str], other: Sequence[str]) -> tuple[str, ...]:
    """The layers of both; one that the first run does not have stands behind the one before it in the second."""
    order = list(one)
    known = set(order)
    place = 0
    for layer in other:
        if layer in known:
            place = order.index(layer) + 1
        else:
            order.insert(place, layer)
            place += 1
    return tuple(order)


def _in_rows(course: LayerCourse, layers: Sequence[str]) -> Cells:
    row = {layer: number for number, layer in enumerate(course.layers)}
    blank = np.full((1, course.cells.shape[1]), np.nan, np.float32)
    return np.concatenate([course.cells, blank])[[row.get(layer, -1) for layer in layers]]


def _sparse(cells: Cells) -> int:
    """How many columns have to be put together for nearly every layer to be in each."""
    there = np.flatnonzero(~np.isnan(cells).all(axis=0))
    rows = cells[~np.isnan(cells).all(axis=1)]
    if not len(there) or not len(rows):
        return 1
    span = int(there[-1] - there[0]) + 1
    usual = float(np.median(np.count_nonzero(~np.isnan(rows), axis=1)))
    return max(1, int(np.ceil((span - 1) / max(1.0, usual - 1)))) if usual > 1 else span


def _widened(cells: Cells, lead: int, together: int, smallest: bool) -> Cells:
    if together == 1:
        return cells
    rows, columns = cells.shape
    padded = np.full((rows, -(-(lead + columns) // together) * together), np.nan, np.float32)
    padded[:, lead : lead + columns] = cells
    blocks = padded.reshape(rows, -1, together)
    if not smallest:
        return np.asarray(np.fmax.reduce(blocks, axis=2), np.float32)
    lowest = np.fmin.reduce(blocks, axis=2)  # an infinity is no small value, but it must be seen
    return np.asarray(np.where(np.isinf(blocks).any(axis=2), np.inf, lowest), np.float32)


def _farthest(
    layers: Sequence[str], offsets: Sequence[int], cells: Sequence[Cells], smallest: bool
) -> LargestGap | None:
    one, other = (each.astype(np.float64) for each in cells)
    known = np.isfinite(one) & np.isfinite(other)
    if not smallest:
        known &= (one > 0) & (other > 0)
    if not known.any():
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.abs(one - other) if smallest else np.abs(np.log(one) - np.log(other))
    row, column = np.unravel_index(int(np.argmax(np.where(known, apart, -1.0))), one.shape)
    return LargestGap(layers[int(row)], offsets[int(column)], float(one[row, column]), float(other[row, column]))


def _broken(layers: Sequence[str], offsets: Sequence[int], cells: Cells) -> FirstNonFinite | None:
    broken = np.isinf(cells)
    if not broken.any():
        return None
    column = int(np.flatnonzero(broken.any(axis=0))[0])
    row = int(np.flatnonzero(broken[:, column])[0])
    return FirstNonFinite(int(broken.any(axis=1).sum()), layers[row], offsets[column])
