"""Keeps delivery gentle, and knows how much it can take.

In: how long each request took. Out: when the next may go, and how many points a second that makes. On a SQLite file
every writer makes all others wait, the script's own `log_metric` too. There a batch is small, and while training lives
one twenty-fifth of the time is ours: of a hundred calls of the script's, four meet one of ours, which its 95th
percentile does not feel.
"""

from __future__ import annotations

from mlflow_stability.tracking.address import is_sqlite

_SMALLEST_BATCH = 10
# One in twenty-five of the script's own calls then meets one of ours, so that its 95th percentile stays what it was.
_SQLITE_SHARE = 0.04
_KNOWN_AFTER = 3  # requests


class Pace:
    """The rhythm of one recording's metrics."""

    def __init__(self, uri: str) -> None:
        sqlite = is_sqlite(uri)
        self._share = _SQLITE_SHARE if sqlite else 0.8
        self._largest = 200 if sqlite else 1000
        self._rate = 1000.0 if sqlite else 1500.0
        self._free_at = 0.0
        self._measured = 0
        self.batch = self._largest
        """How many points a request may hold."""

    def wait(self, now: float, hurry: bool) -> float:
        """Seconds until the next request may go; in a hurry, when training waits or has ended, none."""
        return 0.0 if hurry else max(0.0, self._free_at - now)

    def sent(self, points: int, took: float, now: float) -> None:
        """A request went well."""
        rate = points / max(took, 1e-4)
        if points >= self.batch // 2:  # small ones say nothing about what is possible
            self._rate += 0.3 * (rate - self._rate)
            self._measured += 1
        self._free_at = now + took * (1 / self._share - 1)
        self.batch = min(self._largest, self.batch * 2)

    def failed(self) -> None:
        """A request did not get through: perhaps it was too much at once."""
        self.batch = max(_SMALLEST_BATCH, self.batch // 2)

    @property
    def is_known(self) -> bool:
        """Whether the speed of the store was measured, not only guessed."""
        return self._measured >= _KNOWN_AFTER

    def points_in(self, seconds: float) -> float:
        """How many points can be sent in this time while training lives."""
        return self._rate * self._share * seconds
