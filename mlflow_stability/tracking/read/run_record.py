"""The record of a run as columns: one row per observation, in the order of measurement.

Integers that SQLite returns as eight bytes are decoded: a script that logs ``step=numpy.int64(5)`` into a SQLite
store gets a blob for a step, and MLflow returns it as bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.vocabulary.measured import Signal, StepReading


@dataclass(frozen=True, slots=True, eq=False)
class RunRecord:
    """Arrays of equal length."""

    signals: tuple[Signal, ...]
    """The signals there are, in the order in which they were first seen."""
    recording: NDArray[np.int32]
    attempt: NDArray[np.int32]
    step: NDArray[np.int64]
    time: NDArray[np.float64]
    signal: NDArray[np.int32]
    """Which of `signals`."""
    value: NDArray[np.float64]
    complete: bool = True
    """Whether this is every value that was measured; False: only the points of MLflow's metric tables are left."""
    every: int = 1
    """Of signals with many values, every how many are here: a long record can be read thinned."""

    def __len__(self) -> int:
        return len(self.value)

    def readings(self, recording: int | None = None) -> Iterator[StepReading]:
        """The rows as they were journalled, of one recording or of all: line by line, for trainings side by side have
        several in a step, each with a time of its own.
        """
        rows = np.arange(len(self)) if recording is None else np.flatnonzero(self.recording == recording)
        if not len(rows):
            return
        where = np.stack([self.recording[rows], self.attempt[rows], self.step[rows]])
        is_new = np.any(np.diff(where, axis=1) != 0, axis=0) | (np.diff(self.time[rows]) != 0)
        starts = np.flatnonzero(is_new) + 1
        layouts: dict[bytes, tuple[Signal, ...]] = {}
        for block in np.split(rows, starts):
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
    """Several records as one, their signals numbered anew."""
    numbers: dict[Signal, int] = {}
    codes = []
    for record in records:
        known = np.array([numbers.setdefault(signal, len(numbers)) for signal in record.signals], np.int32)
        codes.append(known[record.signal])
    return RunRecord(
        tuple(numbers),
        np.concatenate([each.recording for each in records]),
        np.concatenate([each.attempt for each in records]),
        np.concatenate([each.step for each in records]),
        np.concatenate([each.time for each in records]),
        np.concatenate(codes),
        np.concatenate([each.value for each in records]),
        all(each.complete for each in records),
    )


def whole_number(stored: int | float | bytes) -> int:
    """A step or a time of a metric's point, as the script meant it."""
    if isinstance(stored, bytes):
        return int.from_bytes(stored, "little", signed=True)
    return int(stored)
