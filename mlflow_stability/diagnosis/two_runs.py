"""Compare two runs: layer by layer, aligned at the onset of their trouble, and where their losses part.

Each quantity by layer is folded into a few hundred columns. Both runs get the same layers in the same order and the
same columns. The extreme of a single step is in its column, a non-finite value is never lost, and memory does not grow
with the length of a run.

Losses are compared at the steps at which both have a value. The difference of the two curves is averaged over windows
of 1, 8, 64 and 512 points. A window separates the runs if noise as rough as that of the two curves would not bring its
mean as far from zero in their whole length, and the next window is off on the same side. Differences below 2 % do not
count, since two seeds of one training differ by that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import restore_infinities
from mlflow_stability.curves.levels import level_noise, to_judged_scale
from mlflow_stability.diagnosis.parameters import seeds_of
from mlflow_stability.diagnosis.run_card import main_curve
from mlflow_stability.vocabulary.measured.layer_comparison import (
    QUANTITY_TITLES,
    Cells,
    FirstNonFinite,
    LargestGap,
    LayerComparison,
    columns_of_run,
)
from mlflow_stability.vocabulary.result import FirstDifference, RunCard
from mlflow_stability.vocabulary.run import Metric, RunHistory

BY_LAYER = tuple(QUANTITY_TITLES)
SMALLEST = frozenset({"attention_entropy"})  # a column of these keeps the smallest value: attention collapses to zero
MAX_LAYERS = 2048
MAX_COLUMNS = 384  # before columns are joined


@dataclass(frozen=True, slots=True)
class StepColumns:
    zero: int  # the step at which column 0 begins
    width: int
    begin: int  # the number of the first column
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
    left_out: int = 0  # number of layers beyond the maximum


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


MIN_COMMON_STEPS = 8  # minimum number of common steps for a comparison with noise
MIN_IDENTICAL = 3  # this number of first values that are equal to the last digit is no coincidence
WINDOWS = (1, 8, 64, 512)  # points of a window
ENTER_DEVIATIONS = 8.0  # standard deviations of its noise that a window has to be off
LEAVE_DEVIATIONS = 3.0  # ... and below which the runs agree again, once they were apart
MIN_SHARE = 0.02
"""A smaller difference does not count: as a share of the level, or of the curves' spread where they reach zero."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    steps: NDArray[np.int64]
    first: NDArray[np.float64]
    second: NDArray[np.float64]


def first_difference_of(first: RunHistory, second: RunHistory) -> FirstDifference:
    curve, other = main_curve(first), main_curve(second)
    seeds, other_seeds = seeds_of(first.params), seeds_of(second.params)
    common = set(seeds) & set(other_seeds)
    same_seed = all(seeds[name] == other_seeds[name] for name in common) if common else None
    if curve is None or other is None:
        without = " and ".join(run.name for run, loss in ((first, curve), (second, other)) if loss is None)
        sentence = f"No loss curve in {without}."
        return FirstDifference(first.source, second.source, "", same_seed=same_seed, sentence=sentence)
    metric = curve.name if curve.name == other.name else f"{curve.name} and {other.name}"
    steps, places, other_places = np.intersect1d(curve.steps, other.steps, return_indices=True)
    pair = _Pair(steps, curve.values[places], other.values[other_places])
    with np.errstate(all="ignore"):
        parting = _parting(pair)
    difference = FirstDifference(first.source, second.source, metric, len(steps), same_seed, *parting)
    names = (first.name, second.name) if first.name != second.name else ("the first", "the second")
    sentence = _sentence(pair, difference, names)
    ends = int(curve.steps[-1]), int(other.steps[-1])
    if len(steps) and abs(ends[0] - ends[1]) > MIN_SHARE * max(ends):
        sentence += (
            f" Only common steps were compared: {names[0]} ends at step {ends[0]:,}, {names[1]} at step {ends[1]:,}."
        )
    return replace(difference, sentence=sentence)


def _parting(pair: _Pair) -> tuple[int | None, int | None, int | None, float | None, int | None]:
    """Return the last of the identical first steps, the first that differs, from where they part, by what, until where.

    None where there is no such step.
    """
    equal = (pair.first == pair.second) | (np.isnan(pair.first) & np.isnan(pair.second))
    unequal = np.flatnonzero(~equal)
    count = int(unequal[0]) if len(unequal) else len(pair.steps)
    identical = int(pair.steps[count - 1]) if count >= min(MIN_IDENTICAL, len(pair.steps)) > 0 else None
    differs = int(pair.steps[count]) if count < len(pair.steps) else None
    apart = _apart(pair) if len(pair.steps) >= MIN_COMMON_STEPS and differs is not None else None
    if apart is None:
        return identical, differs, None, None, None
    begin, end, gap = apart
    begin = max(begin, count)  # what is equal to the last digit is not apart
    return identical, differs, int(pair.steps[begin]), gap, None if end is None else int(pair.steps[end])


def _apart(pair: _Pair) -> tuple[int, int | None, float | None] | None:
    """Return the first place at which they are apart, where they are together again, and the gap between."""
    first_finite, second_finite = np.isfinite(pair.first), np.isfinite(pair.second)
    broken = np.flatnonzero(first_finite != second_finite)
    places = np.flatnonzero(first_finite & second_finite)
    spans = [(int(broken[0]), len(pair.steps))] if len(broken) else []
    difference, logarithmic = np.zeros(0), True
    if len(places) >= MIN_COMMON_STEPS:
        joint, logarithmic = to_judged_scale(np.concatenate([pair.first[places], pair.second[places]]))
        first, second = joint[: len(places)], joint[len(places) :]
        difference = second - first
        noise = math.hypot(level_noise(first), level_noise(second))
        for size in WINDOWS:
            span = _off_span(difference, size, noise) if 2 * size <= len(places) else None
            if span is not None:
                spans.append((int(places[span[0]]), int(places[min(span[1], len(places) - 1)])))
    if not spans:
        return None
    begin, end = min(begin for begin, _ in spans), max(end for _, end in spans)
    first_end = max(span_end for span_begin, span_end in spans if span_begin == begin)
    inside = difference[(places >= begin) & (places < first_end)]
    gap = float(np.expm1(np.median(inside))) if len(inside) and logarithmic else None
    is_over = end < len(pair.steps) - max(2, len(pair.steps) // 50)
    return begin, end if is_over else None, gap


def _off_span(difference: NDArray[np.float64], size: int, noise: float) -> tuple[int, int] | None:
    """Return where windows of this size begin to be off, and where the last of them ends."""
    count = len(difference) // size
    means = difference[: count * size].reshape(count, size).mean(axis=1)
    window_noise = noise / math.sqrt(size)
    if size > 1:  # correlated noise does not average out: then windows vary by more than their points suggest
        window_noise = max(window_noise, level_noise(means) if count >= 4 else 0.0)
    off = np.abs(means) > max(ENTER_DEVIATIONS * window_noise, MIN_SHARE)
    if size > 1 and count > 1:  # and the next one is off on the same side
        off &= np.append(off[1:] & (np.sign(means[1:]) == np.sign(means[:-1])), off[-1] and off[-2])
    hits = np.flatnonzero(off)
    if not len(hits):
        return None
    begin = _onset(difference, int(hits[0]) * size, size, float(means[hits[0]]))
    last = int(hits[-1]) + (1 if size > 1 else 0)
    side = np.sign(means[hits[-1]])
    while last + 1 < count and side * means[last + 1] > max(LEAVE_DEVIATIONS * window_noise, MIN_SHARE):
        last += 1
    return begin, min(len(difference), (last + 1) * size)


def _onset(difference: NDArray[np.float64], place: int, size: int, mean: float) -> int:
    """Return where within the window, or the one before, the difference takes the side that it stays on."""
    if size == 1:
        return place
    low = max(0, place - size)
    off = difference[low : place + size] * np.sign(mean) > abs(mean) / 2
    # The split that leaves the fewest on the wrong side: none of them off before it, all of them behind it.
    wrong = np.concatenate([[0], np.cumsum(off)]) + np.concatenate([np.cumsum(~off[::-1])[::-1], [0]])
    return low + min(int(np.argmin(wrong)), len(off) - 1)


def _sentence(pair: _Pair, difference: FirstDifference, names: tuple[str, str]) -> str:
    metric, same_seed, differs = difference.metric, difference.same_seed, difference.differs_at
    if not len(pair.steps):
        return "The runs have no step in common."
    is_, differ = ("are", "differ") if " and " in metric else ("is", "differs")  # of two metrics with different names
    if differs is None:
        return f"{metric} {is_} identical at all {len(pair.steps):,} common steps."
    equal = [int(step) for step in pair.steps[pair.steps < differs]]
    if not equal:
        begun = f"{metric} {differ} from step {differs:,}"
    elif difference.identical_until is None:  # few values may be equal by chance
        at = f"step{'s' if len(equal) > 1 else ''} {' and '.join(f'{step:,}' for step in equal)}"
        begun = f"{metric} {is_} identical at {at} and {differ} from step {differs:,}"
    else:
        begun = f"{metric} {is_} identical up to step {difference.identical_until:,} and {differ} from step {differs:,}"
    if same_seed is not None:
        begun = f"With {'the same seed' if same_seed else 'different seeds'}, {begun}"
    if difference.parts_at is None:
        if len(pair.steps) < MIN_COMMON_STEPS:
            return f"{begun}; {len(pair.steps)} common steps are too few to separate this from noise."
        return f"{begun}, but always within its noise."
    gap = ""
    if difference.gap is not None:
        ratio = 1 + difference.gap
        gap = f", {names[1]} {abs(difference.gap):.1%} {'above' if difference.gap > 0 else 'below'} {names[0]}"
        if difference.gap > 1:
            times = f"{ratio:.1f}" if ratio < 100 else f"{ratio:,.0f}" if ratio < 1e6 else f"{ratio:.1e}"
            gap = f", {names[1]} {times} times {names[0]}"
    again = "" if difference.meets_at is None else f"; from step {difference.meets_at:,} on they agree again"
    return f"{begun}. From step {difference.parts_at:,} on the runs differ by more than their noise{gap}{again}."
