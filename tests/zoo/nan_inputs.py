"""One batch has cells that are not a number."""

from __future__ import annotations

import math

from mlflow_stability.demo.tables import classification
from mlflow_stability.demo.training_loop import Batch, Failure, FailurePoints

STEP = 431


class MissingCells(FailurePoints):
    def batch(self, step: int, batch: Batch) -> Batch:
        if step == STEP:
            batch[0][::16, 3] = math.nan
        return batch


FAILURE = Failure(
    name="NaN inputs",
    what="One batch has missing cells, read as NaN; they are in the running statistics of the batch norm as well.",
    task=classification,
    trouble=MissingCells(),
    onset=STEP,
)
