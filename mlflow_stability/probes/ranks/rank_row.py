"""The row of numbers that processes of a training sum, and how its sum is read.

Everything travels as a sum: a vote as the number of processes that cast it, an order in a field that only the leading
process fills, and numbers of one process in slots of its own.

Guarantees: every row has the same length until a sum has announced another one to all processes, because gloo aborts a
process where lengths differ; a number counts only if every process has contributed to it, at the same step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isfinite, sqrt
from statistics import median
from typing import NamedTuple

from mlflow_stability.detectors.baseline import Baseline
from mlflow_stability.detectors.detector import Point
from mlflow_stability.kinds.loss.loss_spike import LossSpike

USUAL_OF_CAPTURES = 32  # the usual time is their median
SETTLED_AFTER = 16  # captures until there is a usual time: the first ones compile and fill caches


class RankPeaks(NamedTuple):
    """Outliers on one process since the last exchange; captures count from 1, and 0 means no capture."""

    broken: int = 0  # the first capture with a non-finite loss
    spike: int = 0  # the first capture with a loss spike, or the first spike that counts for all processes
    spike_loss: float = 0.0
    spike_level: float = 0.0  # baseline of the loss at that capture
    spike_z: float = 0.0  # its distance from the baseline in σ
    slow: int = 0  # the capture with the longest time before its backward pass
    slow_seconds: float = 0.0
    slow_usual: float = 0.0

    def at_steps(self, offset: int) -> RankPeaks:
        """Return the same with steps of the recording in place of captures."""
        broken, spike, slow = (int(capture) + offset if capture else 0 for capture in (self[0], self[1], self[5]))
        return self._replace(broken=broken, spike=spike, slow=slow)


def z_of_all(processes: int) -> float:
    """Return the z above which a spike of one process is one of the mean loss of all, whose σ is smaller."""
    return LossSpike().threshold * sqrt(processes)


class PeakWatch:
    """Losses and times of this process; a spike is one by the definition of `loss_spike`."""

    def __init__(self, processes: int) -> None:
        self.now = RankPeaks()  # outliers since `sent`
        self._counts = z_of_all(processes)
        self._detector = LossSpike()
        self._state = self._detector.begin()
        self._baseline = Baseline()
        self._times: deque[float] = deque(maxlen=USUAL_OF_CAPTURES)

    def take(self, capture: int, loss: float | None, seconds: float) -> RankPeaks:
        """Add the next capture; return the outliers since the last exchange."""
        if loss is not None and not isfinite(loss):
            if not self.now.broken:
                self.now = self.now._replace(broken=capture)
        elif loss is not None:
            self._take_loss(capture, loss)
        # No median is computed where a step is no longer than the longest before.
        if seconds > self.now.slow_seconds and len(self._times) >= SETTLED_AFTER:
            usual = median(self._times)
            if seconds > 2 * usual:
                self.now = self.now._replace(slow=capture, slow_seconds=seconds, slow_usual=usual)
        self._times.append(seconds)
        return self.now

    def sent(self, peaks: RankPeaks) -> None:
        """Forget what was sent, unless more came since."""
        if peaks is self.now:
            self.now = RankPeaks()

    def _take_loss(self, capture: int, loss: float) -> None:
        baseline = self._baseline
        baseline.take(loss)
        point = Point(
            "loss",
            "",
            capture,
            loss,
            z=baseline.z,
            accepted=baseline.accepted,
            center=baseline.center,
            scale=baseline.scale,
            tail=baseline.tail,
            logarithmic=baseline.logarithmic,
        )
        self._state, spike = self._detector.step(self._state, point)
        counts_for_all = baseline.z >= self._counts and self.now.spike_z < self._counts
        if spike is not None and (not self.now.spike or counts_for_all):
            self.now = self.now._replace(
                spike=capture, spike_loss=loss, spike_level=baseline.center, spike_z=baseline.z
            )


# Kinds of squares that are summed over processes, of the whole model and by layer: number of values of each.
WIDTHS = {"norms": 3, "updates": 2, "momentum": 1}


class Votes(NamedTuple):
    steps: float = 0.0  # the row is a vote on a step
    agrees: float = 0.0  # the row is about something to be done together
    measures: float = 0.0  # the row has what was measured of a capture
    leaving: float = 0.0  # this is the last row of a process
    broken: float = 0.0  # gradients or loss of this step are non-finite or far too large
    guard_off: float = 0.0  # the guard against broken steps has failed
    done: float = 0.0  # what the processes agreed on was done here
    needs_norm: float = 0.0  # the norm of the whole model is known from these rows alone


class Orders(NamedTuple):
    """Decisions of the leading process; the others leave these fields at zero."""

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
    next_target: float = 0.0  # one more than the step of the state to try next; 0: none
    capture: float = 0.0  # number of the measured capture
    offset: float = 0.0  # steps of the recording minus captures
    layers_every: float = 0.0


class Sums(NamedTuple):
    squares: float = 0.0  # of the gradients that a process holds
    with_squares: float = 0.0  # number of processes that know them
    partial_unknown: float = 0.0  # number of processes whose values still to be summed do not fit into this row
    loss: float = 0.0
    with_loss: float = 0.0  # number of processes with a loss; of a pipeline, those of the last stage
    names: float = 0.0
    names_squared: float = 0.0
    """Of a number made of the names of all layers, by which processes check that they mean the same layers."""


class Slot(NamedTuple):
    has_loss: float = 0.0
    loss: float = 0.0
    seconds: float = 0.0  # time before its backward pass
    peaks: RankPeaks = RankPeaks()


@dataclass(frozen=True, slots=True)
class Layout:
    """What a process can measure beyond what all can."""

    layers: int = 0
    partial: int = 0  # number of values of its gradients that are still to be summed over processes
    names: int = 0  # number made of the names of all layers


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a row: the same in all processes, for they follow from the sums of rows before."""

    size: int  # number of processes
    layers: int = 0  # number of layers that are measured; 0: none are due
    partial: int = 0  # number of values that are still to be summed

    @property
    def numbers(self) -> int:
        by_process = len(Slot._fields) + len(RankPeaks._fields)
        squares = sum(2 + width for width in WIDTHS.values())
        by_layer = sum(2 + width * self.layers for width in WIDTHS.values()) if self.layers else 0
        fields = len(Votes._fields) + len(Orders._fields) + len(Sums._fields)
        return fields + by_process * self.size + squares + by_layer + self.partial


class Squares(NamedTuple):
    processes: float  # number of processes that have measured them
    steps: float  # sum of the steps at which they did
    values: Sequence[float]


NO_VOTES, NO_ORDERS, NO_SUMS, EMPTY_SLOT = Votes(), Orders(), Sums(), Slot()


@dataclass(slots=True)
class RankRow:
    """Row of one process in one exchange, or the sum of the rows of all."""

    votes: Votes = NO_VOTES
    orders: Orders = NO_ORDERS
    sums: Sums = NO_SUMS
    conditions: dict[int, int] = field(default_factory=dict)  # by rank, the condition to stop on that is met there
    slots: dict[int, Slot] = field(default_factory=dict)  # by rank
    whole: dict[str, Squares] = field(default_factory=dict)
    by_layer: dict[str, Squares] = field(default_factory=dict)
    partial: Sequence[float] = ()  # values of gradients that are summed over processes before they are squared

    def numbers(self, shape: Shape) -> list[float]:
        row = [*self.votes, *self.orders, *self.sums]
        row += [self.conditions.get(rank, -1) + 1.0 for rank in range(shape.size)]
        if not self.votes.measures:
            return row + [0.0] * (shape.numbers - len(row))
        for rank in range(shape.size):
            *values, peaks = self.slots.get(rank, EMPTY_SLOT)
            row += [*values, *peaks]
        row += _laid_out(self.whole, 1)
        if shape.layers:
            row += _laid_out(self.by_layer, shape.layers)
        return row + (list(self.partial) if len(self.partial) == shape.partial else [0.0] * shape.partial)

    @classmethod
    def of(cls, numbers: Sequence[float], shape: Shape) -> RankRow:
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
            row.slots[rank] = Slot(has_loss, loss, seconds, RankPeaks._make(islice(rest, len(RankPeaks._fields))))
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
    capture: int
    step: int = 0  # of the recording; 0: unknown
    loss: float | None = None
    seconds: float = 0.0
    peaks: RankPeaks = field(default_factory=RankPeaks)
    squares: float | None = None  # of the gradients of this process; None: not measured, or not known
    needs_norm: bool = False  # the norm of the whole model is known from the exchange alone
    partial: Sequence[float] = ()
    whole: dict[str, Sequence[float]] = field(default_factory=dict)
    by_layer: dict[str, Sequence[float]] = field(default_factory=dict)

    def row(self, rank: int, shape: Shape, names: int) -> RankRow:
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
    """What all processes know after an exchange, for the next one."""

    offset: int  # steps of the recording minus captures
    needs_norm: bool  # there is an exchange at every step
    layers_every: int
    layout_is_shared: bool  # all processes have the same layers


@dataclass(frozen=True, slots=True)
class RankTable:
    norm: float | None  # of all gradients
    whole: dict[str, Sequence[float]]
    by_layer: dict[str, Sequence[float]]
    losses: tuple[float | None, ...]
    seconds: tuple[float, ...]
    peaks: tuple[RankPeaks, ...]  # by rank, as in `Measured`; `peaks` with steps of the recording


def table_of(row: RankRow, size: int, names: int) -> tuple[RankTable, Agreed]:
    """Return what the sum of all rows says of a capture; `names` is the number that this process sent."""
    sums, orders = row.sums, row.orders
    shared = sums.names == size * names and sums.names_squared == size * float(names) ** 2
    offset = int(orders.offset) if math.isfinite(orders.offset) else 0
    slots = [row.slots[rank] for rank in range(size)]
    table = RankTable(
        norm_of(row, size),
        _measured_by_all(row.whole, size),
        _measured_by_all(row.by_layer, size),
        tuple(slot.loss if slot.has_loss else None for slot in slots),
        tuple(slot.seconds for slot in slots),
        tuple(slot.peaks.at_steps(offset) for slot in slots),
    )
    return table, Agreed(offset, row.votes.needs_norm > 0, int(orders.layers_every), shared)


def norm_of(row: RankRow, size: int) -> float | None:
    """Return the norm of all gradients, or None if a process does not know its part."""
    if row.sums.with_squares != size or row.sums.partial_unknown:
        return None
    return root(math.fsum((row.sums.squares, *(value * value for value in row.partial))))


def root(squares: float) -> float:
    """Return the square root; NaN for NaN, infinity for infinity."""
    return math.sqrt(squares) if squares >= 0 else math.nan


def _measured_by_all(squares: Mapping[str, Squares], size: int) -> dict[str, Sequence[float]]:
    measured = {key: kind for key, kind in squares.items() if kind.processes == size and kind.steps % size == 0}
    return {key: kind.values for key, kind in measured.items()}
