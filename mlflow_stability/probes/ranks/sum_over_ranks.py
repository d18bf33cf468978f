"""The row of numbers by which processes tell each other what they have measured, and what its sum says.

In: what one process has measured of a capture. Out: a row whose length all processes know without asking; from the sum
of all rows the norms of the whole model, and the loss and time of each process. Guarantees: every process has the same
length, whatever it has measured or failed to; a number counts only if every process has contributed to it, at the same
step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from mlflow_stability.probes.ranks.rank_peaks import NUMBERS, RankPeaks, numbers_of, peaks_of

SUMS = {"norms": 3, "updates": 2, "momentum": 1}
"""What is summed over processes, and how many numbers it has: of the whole model, and of each layer."""
LEAVING, NEEDS, OFFSET, LAYERS_EVERY, LAYOUT, LAYOUT_SQUARED, COUNT, SQUARES, NORM_UNKNOWN = range(9)
HEADER = 9
BY_RANK = 3 + NUMBERS
"""Of each process: whether it has a loss, the loss, how long it was busy before its backward pass, and what stood out
since the exchange before."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How many numbers there are beside those that every row has."""

    layers: int = 0
    partial: int = 0
    names: int = 0
    """A number made of the names of all layers, by which processes know that they mean the same."""


@dataclass(slots=True)
class Measured:
    """What one process has measured of one capture."""

    capture: int
    step: int = 0
    """By the count of the recording; 0: not known here."""
    loss: float | None = None
    seconds: float = 0.0
    peaks: RankPeaks = field(default_factory=RankPeaks)
    squares: float | None = None
    """Of the gradients that are here; None: not measured, or not known."""
    needs_norm: bool = False
    """Whether the norm of the whole model is known by nothing else."""
    partial: Sequence[float] = ()
    whole: dict[str, Sequence[float]] = field(default_factory=dict)
    by_layer: dict[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all processes know after an exchange, and go by at the next one."""

    offset: int
    """By how much the steps of the recording are ahead of the captures."""
    needs_norm: bool
    """Whether there is to be an exchange at every step."""
    layers_every: int
    layout_is_shared: bool
    """Whether all have the same layers, so that these can be summed."""
    somebody_leaves: bool


@dataclass(frozen=True, slots=True)
class RankTable:
    """What all processes together have measured of one capture."""

    norm: float | None
    """Of all gradients."""
    whole: dict[str, Sequence[float]]
    by_layer: dict[str, Sequence[float]]
    losses: tuple[float | None, ...]
    seconds: tuple[float, ...]
    peaks: tuple[RankPeaks, ...]
    """By rank, as `Measured` has them; `peaks` with steps of the recording."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a row has beside what every row has: the same in all processes, for an exchange before has agreed on it."""

    size: int
    """How many processes there are."""
    layout: Layout
    with_layers: bool
    with_partial: bool


def pack(measured: Measured, rank: int, shape: Shape, names: int) -> list[float]:
    """The row of this process, but for the header's fields about the exchange itself; `names`: of its layers now."""
    size, layout = shape.size, shape.layout
    row = [0.0] * HEADER
    row[LAYOUT], row[LAYOUT_SQUARED] = float(names), float(names) ** 2
    row[NEEDS] = float(measured.needs_norm)
    if measured.squares is not None:
        row[COUNT], row[SQUARES] = 1.0, measured.squares
        if len(measured.partial) != (layout.partial if shape.with_partial else 0):
            row[NORM_UNKNOWN] = 1.0
    by_rank = [0.0] * (BY_RANK * size)
    by_rank[BY_RANK * rank : BY_RANK * (rank + 1)] = [
        float(measured.loss is not None),
        0.0 if measured.loss is None else measured.loss,
        measured.seconds,
        *numbers_of(measured.peaks),
    ]
    row += by_rank
    row += _sums(measured.whole, measured.step, 1)
    if shape.with_layers:
        row += _sums(measured.by_layer, measured.step, layout.layers)
    if shape.with_partial:
        fits = len(measured.partial) == layout.partial
        row += measured.partial if fits else [0.0] * layout.partial
    return row


def _sums(found: dict[str, Sequence[float]], step: int, times: int) -> list[float]:
    row: list[float] = []
    for key, width in SUMS.items():
        values = found.get(key)
        if values is None or len(values) != width * times:
            row += [0.0] * (2 + width * times)
        else:
            row += [1.0, float(step), *values]
    return row


def unpack(row: Sequence[float], shape: Shape, names: int) -> tuple[RankTable, Agreed]:
    """What the sum of all rows says; `names`: what this process has said of its layers."""
    size, layout, at = shape.size, shape.layout, HEADER
    by_rank = row[at : at + BY_RANK * size]
    at += BY_RANK * size
    whole, at = _summed(row, at, size, 1)
    by_layer: dict[str, Sequence[float]] = {}
    if shape.with_layers:
        by_layer, at = _summed(row, at, size, layout.layers)
    squares = row[SQUARES]
    if shape.with_partial:
        squares += math.fsum(each * each for each in row[at : at + layout.partial])
    known = row[COUNT] == size and not row[NORM_UNKNOWN]
    shared = row[LAYOUT] == size * names and row[LAYOUT_SQUARED] == size * float(names) ** 2
    offset = int(row[OFFSET]) if math.isfinite(row[OFFSET]) else 0
    table = RankTable(
        root(squares) if known else None,
        whole,
        by_layer,
        tuple(loss if there else None for there, loss in zip(by_rank[::BY_RANK], by_rank[1::BY_RANK], strict=True)),
        tuple(by_rank[2::BY_RANK]),
        tuple(peaks_of(by_rank[at + 3 : at + BY_RANK]).at_steps(offset) for at in range(0, len(by_rank), BY_RANK)),
    )
    return table, Agreed(offset, row[NEEDS] > 0, int(row[LAYERS_EVERY]), shared, row[LEAVING] > 0)


def root(squares: float) -> float:
    """The square root; of NaN and infinity what they are."""
    return math.sqrt(squares) if squares >= 0 else math.nan


def _summed(row: Sequence[float], at: int, size: int, times: int) -> tuple[dict[str, Sequence[float]], int]:
    found: dict[str, Sequence[float]] = {}
    for key, width in SUMS.items():
        count, step = row[at], row[at + 1]
        at += 2
        if count == size and step % size == 0:
            found[key] = row[at : at + width * times]
        at += width * times
    return found, at
