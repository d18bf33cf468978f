"""A NaN gets into the optimizer's state."""

from __future__ import annotations

import math

from mlflow_stability.demo.language import scheduled_gpt
from mlflow_stability.demo.training_loop import Failure, FailurePoints, Task

STEP = 261


class SpoiledMoment(FailurePoints):
    def before(self, step: int, task: Task) -> None:
        if step == STEP:
            weight = task.model.get_parameter("blocks.1.qkv.weight")
            task.optimizer.state[weight]["exp_avg_sq"][7, 7] = math.nan


FAILURE = Failure(
    name="NaN in optimizer state",
    what="One second moment of Adam is NaN; its weight is so after the step, and then every loss.",
    task=scheduled_gpt,
    trouble=SpoiledMoment(),
    onset=STEP + 1,
)
