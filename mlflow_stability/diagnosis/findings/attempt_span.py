"""Says between which steps a training ran on without a rollback.

In: a run, and a step of one start of its training. Out: the first and the last step of the attempt that it lies in.
Values of different attempts are never compared: after a rollback weights and optimizer state are those of another step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mlflow_stability.curves.curves import Curve, attempt_spans, start_by_attempt
from mlflow_stability.vocabulary.run import RunHistory

FOR_EVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class AttemptSpan:
    """One attempt."""

    first: int
    last: int
    begins_training: bool
    """Whether it is the one in which the training was started, and not one that a rollback began."""

    def __contains__(self, step: int) -> bool:
        return self.first <= step <= self.last

    def cut(self, curve: Curve | None) -> Curve | None:
        """The part of a curve that lies in it; None where nothing does."""
        if curve is None:
            return None
        low = int(np.searchsorted(curve.steps, self.first, side="left"))
        high = int(np.searchsorted(curve.steps, self.last, side="right"))
        return curve.of_points(low, high) if high > low else None


@dataclass(frozen=True, slots=True)
class RunAttempts:
    """All attempts of one run."""

    starts: Mapping[int, int]
    """For each attempt the one in which its training was started."""
    spans: Mapping[int, tuple[int, int]]
    """For each attempt its first step and its last."""
    begun_after: Mapping[int, tuple[int, ...]]
    """For each attempt the steps at which rollbacks say that the next one begins, also where points are thinned."""

    def around(self, start: int, step: int) -> AttemptSpan:
        """The attempt that a step lies in, among those of one start of the training."""
        mine = [attempt for attempt in self.spans if self.starts.get(attempt, attempt) == start]
        begun = {self.spans[attempt][0] for attempt in mine if attempt != start}
        begun |= {each for attempt in mine for each in self.begun_after.get(attempt, ())}
        earlier, later = [each for each in begun if each <= step], [each for each in begun if each > step]
        first = max(earlier, default=min((self.spans[attempt][0] for attempt in mine), default=0))
        last = min(later) - 1 if later else FOR_EVER
        return AttemptSpan(min(first, step), last, begins_training=not earlier)


def attempts_of_run(history: RunHistory) -> RunAttempts:
    """What is known of the attempts of a run."""
    begun: dict[int, tuple[int, ...]] = {}
    for each in history.events or ():
        if each.kind == "rollback":
            begun[each.attempt] = (*begun.get(each.attempt, ()), each.step + 1)
    return RunAttempts(start_by_attempt(history), attempt_spans(history), begun)
