"""Notices that a training hangs: it lives, and no step comes.

In: each step as the journal is heard, and a clock that nobody sets. Out: a `stall` event while it lasts; afterwards one
at INFO for the record, for what went on again was a pause. Promised: the journal heard again gives the same pauses; one
long evaluation in each epoch is told of once; a wall clock that is set, and a machine that sleeps, are no stall.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from mlflow_stability.detectors.ways_to_end import Stall
from mlflow_stability.vocabulary.event import Event, Severity

LEAST_SECONDS = 60.0
USUAL_STEPS = 10.0
"""How many usual steps long a pause must be."""
LONGER_THAN_BEFORE = 3.0
"""How many times as long as the longest pause before: trainings evaluate and save now and then."""
_REMEMBERED = 101
_LEAST_STEPS = 5


class StallWatch:
    """The clock of one recording's steps."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_REMEMBERED)
        self._longest = 0.0
        self._step = 0
        self._time: float | None = None
        self._heard_at = 0.0

    def heard(self, step: int, time: float, took: float | None, now: float) -> Event | None:
        """Take a step in; what to say of the pause before it.

        `time` is the wall clock's at its end, `took` how long it took by a clock that nobody sets, where that was
        measured, and `now` what such a clock of this process said then.
        """
        before, last = self._time, self._step
        self._time, self._step, self._heard_at = time, step, now
        if before is None:
            return None
        seconds = time - before if took is None else took
        if seconds <= 0:
            return None
        limit = self._limit()
        if seconds < LEAST_SECONDS:
            self._recent.append(seconds)
        self._longest = max(self._longest, seconds)
        if limit is None or seconds <= limit:
            return None
        message = f"No step came for {seconds:.0f} s after step {last}; then training went on."
        return self._event(last, Severity.INFO, message, seconds, time)

    def look(self, now: float) -> Event | None:
        """What to say where no step has come until `now`; None while all is well."""
        limit = self._limit()
        if limit is None or self._time is None or now - self._heard_at <= limit:
            return None
        usual = median(self._recent)
        message = (
            f"No step has come for more than {limit:.0f} s since step {self._step}; "
            f"a step usually takes {usual:.3g} s. The process is still there."
        )
        return self._event(self._step, Severity.CRITICAL, message, limit, self._time + limit)

    def _limit(self) -> float | None:
        """The longest wait that is no stall; None before steps have a usual time."""
        if len(self._recent) < _LEAST_STEPS:
            return None
        return max(LEAST_SECONDS, USUAL_STEPS * median(self._recent), LONGER_THAN_BEFORE * self._longest)

    @staticmethod
    def _event(step: int, severity: Severity, message: str, seconds: float, time: float) -> Event:
        remedies = Stall.remedies if severity > Severity.INFO else ()
        return Event(step, Stall.kind, severity, message, evidence={"seconds": seconds}, remedies=remedies, time=time)
