"""When to try again, and for how long it has been in vain."""

from __future__ import annotations

from mlflow_stability.errors import JournalError, RunNotFoundError

_FIRST_DELAY = 0.5
_LONGEST_DELAY = 15.0


class Patience:
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
