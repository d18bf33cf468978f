"""The record of a run as columns: one row per value, in the order of measurement; a long one can be thinned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding

STEPS_AROUND = 100  # number of steps before and after an event, and at both ends of the record, that are kept whole
EVENTS_OF_A_KIND = 5  # number of events of each kind whose surroundings are kept
MIN_VALUES = 2000  # a signal with fewer values than this in a part is kept whole
_MAX_EVERY = 2**20


@dataclass(frozen=True, slots=True, eq=False)
class RunRecord:
    """Arrays of equal length."""

    signals: tuple[Signal, ...]  # in the order in which they first appeared
    recording: NDArray[np.int32]
    attempt: NDArray[np.int32]
    step: NDArray[np.int64]
    time: NDArray[np.float64]
    signal: NDArray[np.int32]  # index into `signals`
    value: NDArray[np.float64]
    complete: bool = True
    """Whether this is every value that was measured; False: only the points of MLflow's metric tables are left."""
    every: int = 1  # of signals with many values, every how many are here: a long record can be read thinned

    def __len__(self) -> int:
        return len(self.value)

    def rows(self, rows: NDArray[np.bool_]) -> RunRecord:
        names = ("recording", "attempt", "step", "time", "signal", "value")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def readings(self) -> Iterator[StepReading]:
        """Yield the rows as they were journalled.

        Trainings side by side have several readings in a step, each with a time of its own.
        """
        if not len(self):
            return
        place = np.stack([self.recording, self.attempt, self.step])
        is_new = np.any(np.diff(place, axis=1) != 0, axis=0) | (np.diff(self.time) != 0)
        layouts: dict[bytes, tuple[Signal, ...]] = {}
        for block in np.split(np.arange(len(self)), np.flatnonzero(is_new) + 1):
            codes = self.signal[block]
            layout = layouts.get(codes.tobytes())
            if layout is None:
                layout = layouts[codes.tobytes()] = tuple(self.signals[code] for code in codes)
            first = block[0]
            yield StepReading(
                int(self.step[first]),
                layout,
                tuple(self.value[block].tolist()),
                int(self.attempt[first]),
                float(self.time[first]),
            )


def joined(records: list[RunRecord]) -> RunRecord:
    """Return several records as one, with one numbering of signals."""
    numbers: dict[Signal, int] = {}
    codes = []
    for record in records:
        number_of = np.array([numbers.setdefault(signal, len(numbers)) for signal in record.signals], np.int32)
        codes.append(number_of[record.signal])
    return RunRecord(
        tuple(numbers),
        np.concatenate([record.recording for record in records]),
        np.concatenate([record.attempt for record in records]),
        np.concatenate([record.step for record in records]),
        np.concatenate([record.time for record in records]),
        np.concatenate(codes),
        np.concatenate([record.value for record in records]),
        all(record.complete for record in records),
    )


def whole_number(stored: int | float | bytes) -> int:
    """Return a step or time of a metric's point as an integer.

    A script that logs ``step=numpy.int64(5)`` into a SQLite store writes a blob, which MLflow returns as bytes.
    """
    if isinstance(stored, bytes):
        return int.from_bytes(stored, "little", signed=True)
    return int(stored)


class RecordThinner:
    """Reads a record of any length, part by part, into bounded memory.

    Of signals with many values, every second, fourth, ... is kept, until about `max_values` are left. Guarantees:
    values around events, the first and the last ones are all kept; the same parts give the same record.
    """

    def __init__(self, max_values: int, events: Iterable[Finding]) -> None:
        self._max_values = max_values
        self._every = 1
        self._parts: list[RunRecord] = []
        counts: Counter[str] = Counter()
        steps = []
        for event in events:
            counts[event.kind] += 1
            if counts[event.kind] <= EVENTS_OF_A_KIND:
                steps.append(event.step)
        self._event_steps = np.unique(np.asarray(steps, np.int64))

    def add(self, part: RunRecord) -> None:
        self._parts.append(self._thinned(part, self._every))
        while sum(map(len, self._parts)) > self._max_values and self._every < _MAX_EVERY:
            self._every *= 2
            self._parts = [self._thinned(kept, 2) for kept in self._parts]

    def record(self) -> RunRecord | None:
        """Return the whole record; None if there was no part."""
        return replace(joined(self._parts), every=self._every) if self._parts else None

    def _thinned(self, part: RunRecord, every: int) -> RunRecord:
        if every == 1 or not len(part):
            return part
        rows = np.argsort(part.signal, kind="stable")
        counts = np.bincount(part.signal, minlength=len(part.signals))
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        ordinal = np.empty(len(part), np.int64)
        ordinal[rows] = np.arange(len(part)) - starts
        steps = part.step
        near: NDArray[np.bool_] = (steps < steps[0] + STEPS_AROUND) | (steps > steps[-1] - STEPS_AROUND)
        if len(self._event_steps):
            place = np.searchsorted(self._event_steps, steps)
            after = self._event_steps[np.minimum(place, len(self._event_steps) - 1)]
            before = self._event_steps[np.maximum(place - 1, 0)]
            near |= (np.abs(after - steps) <= STEPS_AROUND) | (np.abs(steps - before) <= STEPS_AROUND)
        return part.rows((ordinal % every == 0) | (counts[part.signal] < MIN_VALUES) | near)
