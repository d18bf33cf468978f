"""Notice metrics whose lines are of several kinds in turn, such as those of two data sets, with a level of each kind.

The kind of a line is the words in front of its first value. Memory is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping

MAX_PAIRS = 1000  # pairs of kinds that are compared
MIN_CHANGES = 12
"""Minimum number of changes between two kinds of lines that show whether one of them has the higher values."""
MIN_CHANGES_SHARE = 0.1
"""The same as a share of all values."""
MIN_AGREEING = 0.95
"""Minimum share of these changes at which the same kind is higher."""


class LineKinds:
    def __init__(self) -> None:
        self._last: dict[str, tuple[str, float]] = {}
        self._changes: dict[tuple[str, str, str], list[int]] = {}

    def note(self, words: str, values: Mapping[str, float]) -> None:
        """Note the values of a line that begins with these words."""
        for name, value in values.items():
            last, before = self._last.get(name, (words, value))
            self._last[name] = words, value
            if last == words or value == before:
                continue
            pair = (name, min(last, words), max(last, words))
            if pair in self._changes or len(self._changes) < MAX_PAIRS:
                counts = self._changes.setdefault(pair, [0, 0])
                counts[0] += 1
                counts[1] += (value > before) == (words > last)

    def doubts(self, lengths: Mapping[str, int]) -> dict[str, str]:
        """Return names and reasons of the metrics that have a level for each kind; ``lengths``: number of values."""
        return {
            name: f"lines that begin with {first!r} and with {second!r} have different levels"
            for (name, first, second), (changes, rising) in self._changes.items()
            if changes >= max(MIN_CHANGES, MIN_CHANGES_SHARE * lengths.get(name, 0))
            and max(rising, changes - rising) >= MIN_AGREEING * changes
        }
