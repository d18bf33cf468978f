"""Decides which checkpoints may go.

In: what is there. Out: what to delete. Pure. Promised: the best and the last good one always stay; one place is for
the newest, which has yet to prove itself, so that what is not good pushes no good one out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlflow_stability.recovery.checkpoint_meta import CheckpointMeta


def to_delete(checkpoints: Sequence[CheckpointMeta], most: int) -> list[CheckpointMeta]:
    """Those that are too many, of checkpoints that are given oldest first."""
    good = [each for each in checkpoints if each.good and each.finite]
    unproved = [each for each in checkpoints if not (each.good and each.finite)]
    spare_unproved = max(1, most // 2)
    gone = unproved[:-spare_unproved]
    if not good:
        return gone
    best = min(good, key=lambda each: math.inf if math.isnan(each.loss) else each.loss)
    may_go = [each for each in good if each is not best and each is not good[-1]]
    too_many = len(good) + max(1, len(unproved) - len(gone)) - most
    return gone + may_go[: max(0, too_many)]
