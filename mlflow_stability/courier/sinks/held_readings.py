"""Holds readings back until the events of their steps are known, which come a little later than the readings."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from mlflow_stability.journal.record import Record
from mlflow_stability.tracking.write import is_of_the_script
from mlflow_stability.vocabulary.measured import StepReading
from mlflow_stability.vocabulary.result import Finding

HELD_READINGS = 128
"""So many readings are held: events come up to half as many later."""


class HeldReadings:
    """The newest measured steps of one recording, and where each begins in the journal."""

    def __init__(self) -> None:
        self._held: deque[tuple[StepReading, int]] = deque()
        self._marked: set[int] = set()
        """The steps of those that have events."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def full(self) -> bool:
        """Whether the oldest one can go."""
        return len(self._held) > HELD_READINGS

    @property
    def oldest(self) -> StepReading:
        """The one that goes next."""
        return self._held[0][0]

    @property
    def begins(self) -> int | None:
        """Where the oldest one begins; None where nothing is held."""
        return self._held[0][1] if self._held else None

    def take(self, record: Record, begins: int) -> None:
        """Hold a measured step, or mark the step of an event."""
        if isinstance(record, StepReading):
            if not is_of_the_script(record):
                self._held.append((record, begins))
        elif isinstance(record, Finding) and self._held and record.step >= self.oldest.step:
            self._marked.add(record.step)

    def pop(self, offset: int) -> tuple[StepReading, bool]:
        """The oldest reading, its step as the run counts it, and whether an event happened at its step."""
        reading, _ = self._held.popleft()
        marked = reading.step in self._marked
        if not self._held or self._held[0][0].step != reading.step:
            self._marked.discard(reading.step)
        return replace(reading, step=reading.step + offset), marked
