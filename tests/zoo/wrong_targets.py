"""The targets of one batch are in the wrong unit."""

from __future__ import annotations

from mlflow_stability.demo.tables import regression_with_momentum
from mlflow_stability.demo.training_loop import Batch, Failure, FailurePoints

STEP = 431


class GramsForKilograms(FailurePoints):
    def batch(self, step: int, batch: Batch) -> Batch:
        return (batch[0], 1000 * batch[1]) if step == STEP else batch


FAILURE = Failure(
    name="corrupted targets",
    what="One batch has targets a thousand times too large, and momentum carries the weights far away.",
    task=regression_with_momentum,
    trouble=GramsForKilograms(),
    onset=STEP,
)
