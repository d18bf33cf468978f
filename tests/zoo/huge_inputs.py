"""The inputs of one batch are a million times too large."""

from __future__ import annotations

from mlflow_stability.demo.tables import regression_with_adam
from mlflow_stability.demo.training_loop import Batch, Failure, FailurePoints

STEP = 231


class UnscaledInputs(FailurePoints):
    def batch(self, step: int, batch: Batch) -> Batch:
        return (1e6 * batch[0], batch[1]) if step == STEP else batch


FAILURE = Failure(
    name="inputs x1e6",
    what="One batch came past the normalisation; Adam's second moments are so large after it that nothing moves.",
    task=regression_with_adam,
    trouble=UnscaledInputs(),
    onset=STEP,
    recoverable=True,
    why="The second moments from before that batch; the weights alone would not do.",
)
