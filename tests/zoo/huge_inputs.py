"""The inputs of one batch are a million times too large."""

from __future__ import annotations

from torch import nn
from torch.optim import Adam

from mlflow_stability.demo.tables import regression
from mlflow_stability.demo.training_loop import Batch, Failure, FailurePoints, Task

STEP = 231


def regression_with_adam(seed: int) -> Task:
    return regression(seed, nn.ReLU, Adam, lr=3e-3)


class UnscaledInputs(FailurePoints):
    def batch(self, step: int, batch: Batch) -> Batch:
        return (1e6 * batch[0], batch[1]) if step == STEP else batch


FAILURE = Failure(
    name="inputs x1e6",
    what="One batch came past the normalisation; Adam's second moments are so large after it that nothing moves.",
    task=regression_with_adam,
    trouble=UnscaledInputs(),
    onset=STEP,
)
