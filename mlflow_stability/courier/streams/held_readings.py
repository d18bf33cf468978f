"""Holds readings back until the events of their steps are known, which come a little later than the readings."""

from __future__ import annotations

from collections import deque

from mlflow_stability.vocabulary.measured import StepReading

HELD_READINGS = 128
"""So many readings are held: events come up to half as many later."""


class HeldReadings:
    """The newest readings of one recording, and where each begins in the journal."""

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

    def add(self, reading: StepReading, begins: int) -> None:
        """Hold this one too."""
        self._held.append((reading, begins))

    def mark(self, step: int) -> None:
        """An event happened at this step."""
        if self._held and step >= self.oldest.step:
            self._marked.add(step)

    def pop(self) -> tuple[StepReading, int, bool]:
        """The oldest reading, where it begins, and whether an event happened at its step."""
        reading, begins = self._held.popleft()
        marked = reading.step in self._marked
        if not self._held or self._held[0][0].step != reading.step:
            self._marked.discard(reading.step)
        return reading, begins, marked
