"""Base of all streams from a journal into a run, and when to retry.

Each stream follows the journal from a position of its own. One that is blocked (the artifact store does not answer,
say) neither delays the others nor fills the memory: it reads on later.
"""

from __future__ import annotations

from typing import Protocol

from mlflow_stability.errors import JournalError, RunNotFoundError


class Stream(Protocol):
    """One kind of thing on its way into the run."""

    done: bool
    """Everything has arrived."""

    @property
    def reached(self) -> int:
        """The position in the journal up to which everything has arrived that should have by now."""

    def advance(self, over: bool) -> bool:
        """Do a bite of work; True if there is more to do at once. `over`: nothing more will be recorded, send the rest.

        Raises `TrackingError` when the store did not take it; calling again tries the same again.
        """


class DataStream(Stream, Protocol):
    """One that can be asked to send at once all that was recorded so far; pictures are drawn at their own pace."""

    hurried: bool
    """Set from outside; False again when all of it has arrived."""


_FIRST_DELAY = 0.5
_LONGEST_DELAY = 15.0


class Backoff:
    """The trouble with one thing that has to be done: waits ever longer, never gives up by itself."""

    def __init__(self) -> None:
        self.error = ""
        """What went wrong the last time; empty while all is well."""
        self.hopeless = False
        """Trying again does not help: the run or the journal is gone."""
        self.since: float | None = None
        """Since when."""
        self._delay = _FIRST_DELAY
        self._again_at = 0.0

    def ready(self, now: float) -> bool:
        """Whether it is time to try."""
        return now >= self._again_at

    def failed(self, error: Exception, now: float) -> None:
        """It did not work."""
        self.error = str(error)
        self.hopeless = isinstance(error, RunNotFoundError | JournalError)
        self.since = now if self.since is None else self.since
        self._again_at = now + self._delay
        self._delay = min(_LONGEST_DELAY, self._delay * 2)

    def succeeded(self) -> None:
        """It works (again)."""
        self.error, self.since, self.hopeless = "", None, False
        self._delay, self._again_at = _FIRST_DELAY, 0.0
