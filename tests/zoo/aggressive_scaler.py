"""A loss scaler that raises its scale boldly and lowers it timidly."""

from __future__ import annotations

from torch import Tensor, nn
from torch.amp import GradScaler

from mlflow_stability.demo.language import STEPS, language_task, tiny_gpt
from mlflow_stability.demo.training_loop import Failure, FailurePoints, Task, cosine


class HalfPrecisionScores(nn.Module):
    """A GPT whose scores, and so the gradients that come back through them, are in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt = tiny_gpt()

    def forward(self, given: Tensor) -> Tensor:
        scores: Tensor = self.gpt(given).half().float()
        return scores


def half_precision_gpt(seed: int) -> Task:
    """With the usual scaler."""
    scaler = GradScaler("cpu", init_scale=2.0**16, growth_interval=200)
    return language_task(seed, HalfPrecisionScores, share_of_lr=cosine(STEPS), clip=1.0, scaler=scaler)


class BoldScaler(FailurePoints):
    def before(self, step: int, task: Task) -> None:
        if step == 1 and task.scaler is not None:
            task.scaler.set_growth_interval(8)
            task.scaler.set_growth_factor(4.0)
            task.scaler.set_backoff_factor(0.97)


FAILURE = Failure(
    name="aggressive loss scaler",
    what="The scale grows fourfold every eight steps and falls by a thirtieth at an overflow: most steps are skipped.",
    task=half_precision_gpt,
    trouble=BoldScaler(),
    onset=41,
)
