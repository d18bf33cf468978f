"""Reads a record of any length into bounded memory: of signals with many values, every second, fourth, … is kept.

In: the parts of a record, in order, and the steps of its events. Out: one record, which says how much of it is there.
Guarantees: at most about as many values as were asked for are in memory beside one part; values around events, the
first and the last ones are all kept; signals that are measured rarely are kept whole; the same parts give the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.tracking.read.run_record import RunRecord, joined
from mlflow_stability.vocabulary.result import Finding

AROUND = 100
"""Steps before and after an event, and at both ends of the record, of which everything is kept."""
OF_A_KIND = 5
"""So many events of each type have their surroundings kept."""
_THINNEST = 2**20
"""Beyond this nothing is left but what is always kept."""
RARE = 2000
"""A signal with fewer values than this in a part is kept whole."""


class RecordThinner:
    """A record that grows by its parts."""

    def __init__(self, most: int, events: Iterable[Finding]) -> None:
        self._most = most
        self._every = 1
        self._parts: list[RunRecord] = []
        counted: Counter[str] = Counter()
        steps = []
        for event in events:
            counted[event.kind] += 1
            if counted[event.kind] <= OF_A_KIND:
                steps.append(event.step)
        self._around = np.unique(np.asarray(steps, np.int64))

    def add(self, part: RunRecord) -> None:
        """Take in the next part."""
        self._parts.append(self._thinned(part, self._every))
        while sum(map(len, self._parts)) > self._most and self._every < _THINNEST:
            self._every *= 2
            self._parts = [self._thinned(each, 2) for each in self._parts]

    def record(self) -> RunRecord | None:
        """All of it; None where there was no part."""
        return replace(joined(self._parts), every=self._every) if self._parts else None

    def _thinned(self, part: RunRecord, every: int) -> RunRecord:
        if every == 1 or not len(part):
            return part
        rows = np.argsort(part.signal, kind="stable")
        counts = np.bincount(part.signal, minlength=len(part.signals))
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        ordinal = np.empty(len(part), np.int64)
        ordinal[rows] = np.arange(len(part)) - starts
        kept = (ordinal % every == 0) | (counts[part.signal] < RARE) | self._is_near(part.step)
        return RunRecord(
            part.signals,
            part.recording[kept],
            part.attempt[kept],
            part.step[kept],
            part.time[kept],
            part.signal[kept],
            part.value[kept],
            part.complete,
        )

    def _is_near(self, steps: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether a step is around an event, or at an end of its part."""
        near: NDArray[np.bool_] = (steps < steps[0] + AROUND) | (steps > steps[-1] - AROUND)
        if len(self._around):
            place = np.searchsorted(self._around, steps)
            after = self._around[np.minimum(place, len(self._around) - 1)]
            before = self._around[np.maximum(place - 1, 0)]
            near |= (np.abs(after - steps) <= AROUND) | (np.abs(steps - before) <= AROUND)
        return near
