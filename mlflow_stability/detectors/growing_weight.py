"""Recognise a term of the loss whose weight a schedule changes: the loss then rises or falls without any trouble."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

GRACE_STEPS = 100  # number of steps after a change of a weight during which rises of the loss are expected
LOOKBACK_STEPS = 512  # number of steps over which a weight has grown, as many as a slow rise is judged by
STEADY = 8  # minimum number of changes in one direction for each one in the other: else it follows the batches
LEAST_CHANGE = 0.1  # minimum change of a weight, as a share of its larger value, that explains a rise
HIGHEST_RISE = 100.0  # multiple of the largest first loss from which a loss has diverged whatever the weights are


@dataclass(slots=True)
class TermWeight:
    """The weight of a term of the loss, and the directions in which it changed."""

    last: float | None = None
    rises: int = 0
    falls: int = 0
    changes: deque[tuple[int, float]] = field(default_factory=deque)
    """Step and weight of the last changes, the first of them from before these steps."""

    def see(self, weight: float, step: int) -> None:
        if self.last is not None and weight != self.last:
            self.rises += weight > self.last
            self.falls += weight < self.last
        self.last = weight
        self.changes.append((step, abs(weight)))
        while len(self.changes) > 1 and self.changes[1][0] <= step - LOOKBACK_STEPS:
            self.changes.popleft()

    @property
    def is_steady(self) -> bool:
        """Whether it changes as a schedule does."""
        return max(self.rises, self.falls, 1) >= STEADY * min(self.rises, self.falls)

    def growth(self, step: int) -> float:
        """Return by which factor a schedule has raised it, and a loss of positive terms at most; 1 if it has not."""
        if not self.changes or not 0 <= step - self.changes[-1][0] <= GRACE_STEPS or not self.is_steady:
            return 1.0
        lowest, now = min(weight for _, weight in self.changes), self.changes[-1][1]
        return now / lowest if lowest else inf if now else 1.0


def changed_between(weights: Sequence[tuple[int, float]], first: int, last: int) -> tuple[float, float] | None:
    """Return the weight at two steps, from its recorded changes; None where it hardly changed, or not steadily."""
    weight = TermWeight()
    for step, value in weights:
        weight.see(value, step)
    before = [value for step, value in weights if step <= first] or [value for _, value in weights[:1]]
    after = [value for step, value in weights if step <= last]
    if not after or not weight.is_steady:
        return None
    low, high = before[-1], after[-1]
    return (low, high) if abs(high - low) >= LEAST_CHANGE * max(abs(low), abs(high)) > 0 else None


STABLE_STEPS = 32  # steps with the same number of terms before a change counts: else it follows the batches


@dataclass(slots=True)
class LossTermCount:
    """The number of terms that a loss adds up, as it is recorded when it changes."""

    count: float | None = None
    since: int = 0  # the step from which it is that

    def has_changed(self, step: int, count: float) -> bool:
        """Take the number; return whether it differs from one that was the same for long."""
        changed = self.count is not None and count != self.count
        if count != self.count:
            was_stable = step - self.since >= STABLE_STEPS
            self.count, self.since = count, step
            return changed and was_stable
        return False


def term_changes(counts: Sequence[tuple[int, float]]) -> list[tuple[int, float, float]]:
    """Return the steps at which a number of terms that was the same for long changed, and both numbers."""
    watch, changes = LossTermCount(), []
    for step, count in counts:
        before = watch.count
        if watch.has_changed(step, count) and before is not None:
            changes.append((step, before, count))
    return changes
