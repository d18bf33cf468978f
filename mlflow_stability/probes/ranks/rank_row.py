"""The row of numbers that processes of a training sum, and what its sum says.

In: votes, orders and measurements of one process. Out: a row whose length all processes know without asking, and the
same fields of the sum of all rows. Guarantees: every row has the same length until a sum has told all processes of
another one, for gloo ends a process where lengths differ; a number counts only if every process has contributed to it,
at the same step.

Everything travels as a sum: a vote as the number of processes that cast it, an order in a field that only the leading
process fills, what belongs to one process in a slot of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from mlflow_stability.probes.ranks.rank_peaks import NUMBERS, RankPeaks, numbers_of, peaks_of

WIDTHS = {"norms": 3, "updates": 2, "momentum": 1}
"""Squares that are summed over processes, of the whole model and of each layer, and how many numbers they have."""


class Votes(NamedTuple):
    """How many processes say so."""

    steps: float = 0.0
    """The row is a vote on a step."""
    agrees: float = 0.0
    """The row is about something that is to be done together."""
    measures: float = 0.0
    """The row has what was measured of a capture."""
    leaving: float = 0.0
    """This is the last row of a process: it measures and votes no more."""
    broken: float = 0.0
    """The gradients or the loss of this step are not finite, or absurd."""
    guard_off: float = 0.0
    """The guard against broken steps has failed."""
    done: float = 0.0
    """What the processes agree on has worked here."""
    needs_norm: float = 0.0
    """The norm of the whole model is known by nothing but these rows."""


class Orders(NamedTuple):
    """What the leading process decides; the others leave these fields at zero, so that their sum is its word."""

    healthy: float = 0.0
    trouble: float = 0.0
    snapshot: float = 0.0
    checkpoint: float = 0.0
    ends: float = 0.0
    steps_back: float = 0.0
    """One more than the steps from the target of a rollback to the present one, for each process counts its own."""
    easing_factor: float = 0.0
    easing_steps: float = 0.0
    lasting_share: float = 0.0
    reset: float = 0.0
    cut: float = 0.0
    ahead: float = 0.0
    release: float = 0.0
    next_target: float = 0.0
    """One more than the step of the state to try next; 0: there is none."""
    capture: float = 0.0
    """The number of the capture that was measured."""
    offset: float = 0.0
    """By how much the steps of the recording are ahead of the captures."""
    layers_every: float = 0.0


class Sums(NamedTuple):
    """Added up over all processes."""

    squares: float = 0.0
    """Of the gradients that a process holds."""
    with_squares: float = 0.0
    """How many processes know them."""
    partial_unknown: float = 0.0
    """How many processes have values still to be summed that have no place in this row."""
    loss: float = 0.0
    with_loss: float = 0.0
    """How many processes have a loss; of a pipeline, those of the last stage."""
    names: float = 0.0
    names_squared: float = 0.0
    """Of the number made of the names of all layers, by which processes know that they mean the same."""


class Slot(NamedTuple):
    """What stays apart for each process."""

    has_loss: float = 0.0
    loss: float = 0.0
    seconds: float = 0.0
    """How long it was busy before its backward pass."""
    peaks: RankPeaks = RankPeaks()
    """What stood out since the exchange before."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What a process can measure beside what all can."""

    layers: int = 0
    partial: int = 0
    """How many values of its gradients are still to be summed over processes."""
    names: int = 0
    """A number made of the names of all layers."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How much room a row has: the same in all processes, for it follows from the sums of rows before."""

    size: int
    """How many processes there are."""
    layers: int = 0
    """Of how many layers; 0: none are due."""
    partial: int = 0
    """How many values there are that are still to be summed."""

    @property
    def numbers(self) -> int:
        """How many numbers a row has."""
        by_process = 1 + len(Slot._fields) - 1 + NUMBERS
        squares = sum(2 + width for width in WIDTHS.values())
        by_layer = sum(2 + width * self.layers for width in WIDTHS.values()) if self.layers else 0
        fields = len(Votes._fields) + len(Orders._fields) + len(Sums._fields)
        return fields + by_process * self.size + squares + by_layer + self.partial


class Squares(NamedTuple):
    """Squares of one kind."""

    processes: float
    """How many have measured them."""
    steps: float
    """The sum of the steps at which they did."""
    values: Sequence[float]


NO_VOTES, NO_ORDERS, NO_SUMS, EMPTY_SLOT = Votes(), Orders(), Sums(), Slot()


@dataclass(slots=True)
class RankRow:
    """What one process says in one exchange, or the sum of what all have said."""

    votes: Votes = NO_VOTES
    orders: Orders = NO_ORDERS
    sums: Sums = NO_SUMS
    conditions: dict[int, int] = field(default_factory=dict)
    """By rank, which condition to stop on is met there."""
    slots: dict[int, Slot] = field(default_factory=dict)
    """By rank."""
    whole: dict[str, Squares] = field(default_factory=dict)
    by_layer: dict[str, Squares] = field(default_factory=dict)
    partial: Sequence[float] = ()
    """Values of gradients that are to be summed over processes before they are squared."""

    def numbers(self, shape: Shape) -> list[float]:
        """The row as it is sent."""
        row = [*self.votes, *self.orders, *self.sums]
        row += [self.conditions.get(rank, -1) + 1.0 for rank in range(shape.size)]
        if not self.votes.measures:
            return row + [0.0] * (shape.numbers - len(row))
        for rank in range(shape.size):
            *apart, peaks = self.slots.get(rank, EMPTY_SLOT)
            row += [*apart, *numbers_of(peaks)]
        row += _laid_out(self.whole, 1)
        if shape.layers:
            row += _laid_out(self.by_layer, shape.layers)
        return row + (list(self.partial) if len(self.partial) == shape.partial else [0.0] * shape.partial)

    @classmethod
    def of(cls, numbers: Sequence[float], shape: Shape) -> RankRow:
        """The fields of a row that has arrived."""
        rest = iter(numbers)
        row = cls(
            Votes._make(islice(rest, len(Votes._fields))),
            Orders._make(islice(rest, len(Orders._fields))),
            Sums._make(islice(rest, len(Sums._fields))),
        )
        met = enumerate(islice(rest, shape.size))
        row.conditions = {rank: round(number) - 1 for rank, number in met if number > 0}
        if not row.votes.measures:
            return row
        for rank in range(shape.size):
            has_loss, loss, seconds = next(rest), next(rest), next(rest)
            row.slots[rank] = Slot(has_loss, loss, seconds, peaks_of(list(islice(rest, NUMBERS))))
        row.whole = _read(rest, 1)
        if shape.layers:
            row.by_layer = _read(rest, shape.layers)
        row.partial = list(rest)
        return row


def _laid_out(squares: Mapping[str, Squares], times: int) -> list[float]:
    row: list[float] = []
    for key, width in WIDTHS.items():
        measured = squares.get(key)
        if measured is None or len(measured.values) != width * times:
            row += [0.0] * (2 + width * times)
        else:
            row += [measured.processes, measured.steps, *measured.values]
    return row


def _read(rest: Iterator[float], times: int) -> dict[str, Squares]:
    return {key: Squares(next(rest), next(rest), list(islice(rest, width * times))) for key, width in WIDTHS.items()}


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

    def row(self, rank: int, shape: Shape, names: int) -> RankRow:
        """As it is sent; `names`: of its layers now."""
        sums = Sums(names=float(names), names_squared=float(names) ** 2)
        if self.squares is not None:
            unknown = float(len(self.partial) != shape.partial)
            sums = sums._replace(squares=self.squares, with_squares=1.0, partial_unknown=unknown)
        has_loss = self.loss is not None
        step = float(self.step)
        return RankRow(
            Votes(measures=1.0, needs_norm=float(self.needs_norm)),
            sums=sums,
            slots={rank: Slot(float(has_loss), self.loss or 0.0, self.seconds, self.peaks)},
            whole={key: Squares(1.0, step, values) for key, values in self.whole.items()},
            by_layer={key: Squares(1.0, step, values) for key, values in self.by_layer.items()},
            partial=self.partial,
        )


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


def table_of(row: RankRow, size: int, names: int) -> tuple[RankTable, Agreed]:
    """What the sum of all rows says of a capture; `names`: what this process has said of its layers."""
    sums, orders = row.sums, row.orders
    shared = sums.names == size * names and sums.names_squared == size * float(names) ** 2
    offset = int(orders.offset) if math.isfinite(orders.offset) else 0
    slots = [row.slots[rank] for rank in range(size)]
    table = RankTable(
        norm_of(row, size),
        _measured_by_all(row.whole, size),
        _measured_by_all(row.by_layer, size),
        tuple(each.loss if each.has_loss else None for each in slots),
        tuple(each.seconds for each in slots),
        tuple(each.peaks.at_steps(offset) for each in slots),
    )
    return table, Agreed(offset, row.votes.needs_norm > 0, int(orders.layers_every), shared)


def norm_of(row: RankRow, size: int) -> float | None:
    """The norm of all gradients; None where a process does not know its part."""
    if row.sums.with_squares != size or row.sums.partial_unknown:
        return None
    return root(math.fsum((row.sums.squares, *(each * each for each in row.partial))))


def root(squares: float) -> float:
    """The square root; of NaN and infinity what they are."""
    return math.sqrt(squares) if squares >= 0 else math.nan


def _measured_by_all(squares: Mapping[str, Squares], size: int) -> dict[str, Sequence[float]]:
    return {key: each.values for key, each in squares.items() if each.processes == size and each.steps % size == 0}
