"""One finding for one trouble: says whether a detector may speak.

A detector that has spoken is silent until the trouble is over: nothing was wrong for so many values in a row. In
between it speaks again only if the trouble has become worse in kind, from a warning to a critical one.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_stability.vocabulary.result.severity import Severity


@dataclass(slots=True)
class EpisodeFilter:
    """Whether there is trouble at the moment, and what was said of it."""

    said: int = 0
    """The severity of what was said; 0 while all is well."""
    calm: int = 0
    """How many values in a row nothing has been wrong."""

    def speaks(self, severity: Severity) -> bool:
        """Something is wrong: whether it has not been said yet."""
        self.calm = 0
        if severity <= self.said:
            return False
        self.said = severity
        return True

    def quiet(self, over_after: int) -> None:
        """Nothing is wrong at this value; after `over_after` of them in a row the trouble is over."""
        self.calm += 1
        if self.calm >= over_after:
            self.said = 0
