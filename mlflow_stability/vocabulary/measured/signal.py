"""Signals, their values, and conditions on them."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

UNCLIPPED = "no clipping seen"  # value of the fact about the gradient norm: no clipping before any optimizer step
TRACK = "track_"  # prefix of the places of trainings beside the main one, or after it
MAX_TRACKS = 16  # trainings with names of their own in a recording
SHARED_TRACK = f"{TRACK}{MAX_TRACKS - 1}"  # place of all further ones, which have nothing in common
SIDE_BY_SIDE_STEPS = 10  # trainings whose first steps are further apart follow one another


def is_whole_model(place: str) -> bool:
    """Whether values of this place are of a whole model: the only one, or one of several that train side by side."""
    return not place or place.startswith(TRACK)


@dataclass(frozen=True, slots=True, order=True)
class Signal:
    """A quantity of the whole model, or of one place in it."""

    quantity: str  # what is measured: ``grad_norm``
    place: str = ""  # where: the name of a module, of an optimizer's group; empty for the whole model

    def __str__(self) -> str:
        """``grad_norm`` or ``grad_norm@blocks.3.attn``, as tables and messages show it."""
        return f"{self.quantity}@{self.place}" if self.place else self.quantity

    @classmethod
    def parse(cls, text: str) -> Signal:
        """Read back what ``str`` wrote."""
        quantity, _, place = text.partition("@")
        return cls(quantity, place)


MAX_LAYOUTS = 1024  # A training has a handful of layouts. Beyond this number they are forgotten, and get new objects.

LAYOUTS: dict[tuple[int, ...], tuple[Signal, ...]] = {}  # results of `shared_layout`, by the ids of the signals


def shared_layout(signals: Sequence[Signal]) -> tuple[Signal, ...]:
    """Return one tuple for the same signal objects, so that callers recognise it by `is`, without a comparison."""
    key = tuple(map(id, signals))  # a tuple that is kept keeps its signals, so that no other object gets their ids
    layout = LAYOUTS.get(key)
    if layout is None:
        if len(LAYOUTS) >= MAX_LAYOUTS:
            LAYOUTS.clear()
        layout = LAYOUTS[key] = tuple(signals)
    return layout


@dataclass(frozen=True, slots=True)
class StepReading:
    """Everything that was measured in one capture; the journal keeps it as one line."""

    step: int
    signals: tuple[Signal, ...]
    values: tuple[float, ...]
    attempt: int = 0  # number of rollbacks before this step
    time: float = 0.0  # when the step ended, in seconds since the epoch


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """The values of one signal, oldest first, as arrays of equal length."""

    signal: Signal
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    attempts: NDArray[np.int64]
    times: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.steps)


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_CONDITION = re.compile(r"\s*([A-Za-z_]\w*(?:@[\w.\-]+)?)\s*(>=|<=|>|<)\s*(\S+)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    """A signal compared with a number: ``grad_norm>100``, ``loss >= 50``, ``grad_norm@layer.0>10``."""

    text: str  # as it was written, stripped
    signal: Signal  # without a place: the whole model, and each training beside the first
    comparison: str
    limit: float  # NaN where what was written is not a number

    def holds(self, value: float) -> bool:
        """Whether this value meets it; NaN never does."""
        return _COMPARISONS[self.comparison](value, self.limit)


def parse_condition(text: str) -> Condition | None:
    """Read a condition; None where the text does not have its form."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        return None
    signal, comparison, number = match.groups()
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    return Condition(text.strip(), Signal.parse(signal), comparison, limit)
