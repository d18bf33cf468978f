"""The loader gives the same batch again and again."""

from __future__ import annotations

from mlflow_stability.demo.language import scheduled_gpt
from mlflow_stability.demo.training_loop import Batch, Failure, FailurePoints

FIRST = 261


class StuckLoader(FailurePoints):
    def __init__(self) -> None:
        self.stuck: Batch | None = None

    def batch(self, step: int, batch: Batch) -> Batch:
        if step < FIRST:
            return batch
        if step == FIRST:
            self.stuck = batch
        assert self.stuck is not None
        return self.stuck


FAILURE = Failure(
    name="repeated data",
    what="From a step on, every batch is the same: the training loss looks better and better.",
    task=scheduled_gpt,
    trouble=StuckLoader(),
    onset=FIRST + 1,
)
