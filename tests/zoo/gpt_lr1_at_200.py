"""The learning rate of a tiny GPT is set to 1.0 and stays there."""

from __future__ import annotations

from mlflow_stability.demo.language import plain_gpt
from mlflow_stability.demo.training_loop import Failure, FailurePoints, Task

STEP = 200


class SetToOne(FailurePoints):
    def before(self, step: int, task: Task) -> None:
        if step == STEP:
            for group in task.optimizer.param_groups:
                group["lr"] = 1.0


FAILURE = Failure(
    name="GPT: lr 1.0 at 200",
    what="The learning rate of AdamW is set from 0.005 to 1.0, once, by hand.",
    task=plain_gpt,
    trouble=SetToOne(),
    onset=STEP + 1,
)
