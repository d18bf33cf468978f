"""One number that was measured, and all the numbers of one capture.

One signal over time, oldest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.vocabulary.measured.signal import Signal


@dataclass(frozen=True, slots=True)
class Observation:
    """One value of one signal at one step."""

    signal: Signal
    step: int
    value: float
    attempt: int = 0
    """How many times the training had been rolled back before this step."""
    time: float = 0.0
    """Seconds since the epoch, when the step ended."""


@dataclass(frozen=True, slots=True)
class StepReading:
    """Everything that was measured in one capture: what the journal keeps as one line."""

    step: int
    signals: tuple[Signal, ...]
    values: tuple[float, ...]
    attempt: int = 0
    time: float = 0.0

    def observations(self) -> Iterator[Observation]:
        """The single values, in the order in which they are judged."""
        for signal, value in zip(self.signals, self.values, strict=True):
            yield Observation(signal, self.step, value, self.attempt, self.time)


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """The values of one signal with their steps, as arrays of equal length."""

    signal: Signal
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    attempts: NDArray[np.int64]
    times: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.steps)


def series_by_signal(readings: Iterable[StepReading]) -> dict[Signal, Series]:
    """Turn step readings into one series for each signal, in order of first appearance."""
    rows: dict[Signal, list[tuple[int, float, int, float]]] = {}
    for reading in readings:
        for signal, value in zip(reading.signals, reading.values, strict=True):
            rows.setdefault(signal, []).append((reading.step, value, reading.attempt, reading.time))
    found = {}
    for signal, points in rows.items():
        steps, values, attempts, times = zip(*points, strict=True)
        found[signal] = Series(
            signal,
            np.asarray(steps, np.int64),
            np.asarray(values, np.float64),
            np.asarray(attempts, np.int64),
            np.asarray(times, np.float64),
        )
    return found
