"""Faults of the demo's training: a learning-rate jump, and an empty batch.

In: how many steps there are. Out: which of them. Guarantees: a state before the jump is
confirmed as good by then.
"""

from __future__ import annotations

from dataclasses import dataclass

FEWEST_STEPS = 400
"""The faults need room: before them for a good state, after them to recover."""
TOO_HIGH = 30
"""So many times too high is the learning rate."""
FOR_STEPS = 20
_KEPT_EVERY, _BEHIND_KEPT = 100, 60  # the autopilot's own rhythm: it goes back at least 40 steps before the jump


@dataclass(frozen=True, slots=True)
class FailureSteps:
    """The steps at which something goes wrong."""

    first: int
    """From here on the learning rate is too high."""
    last: int
    """To here."""
    empty: int
    """Nothing in the batch of this step counts: its loss is 0 / 0."""

    def factor(self, step: int) -> int:
        """What the learning rate of a step is multiplied by."""
        return TOO_HIGH if self.first <= step <= self.last else 1


def troubles_in(steps: int) -> FailureSteps:
    """The jump near the middle, the empty batch after four fifths."""
    first = steps // 2 // _KEPT_EVERY * _KEPT_EVERY + _BEHIND_KEPT
    return FailureSteps(first, first + FOR_STEPS - 1, max(first + 2 * FOR_STEPS, steps * 4 // 5))
