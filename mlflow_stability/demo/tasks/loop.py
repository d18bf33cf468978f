"""The training loop of the simulations: an ordinary one, with places where things can go wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR

from mlflow_stability.demo.tasks.task import Batch, Task

JUDGED_STEPS = 20
"""The final loss is the mean over so many steps at the end."""


@dataclass(slots=True)
class Notes:
    """What is known of a training while it goes on and after it, however it ended."""

    losses: list[float] = field(default_factory=list)
    """The training loss of every step."""
    tests: list[float] = field(default_factory=list)
    """The loss on the test batches with the weights after each of the last steps."""

    @property
    def final_loss(self) -> float:
        """NaN where training did not come to its end."""
        return sum(self.tests) / JUDGED_STEPS if len(self.tests) == JUDGED_STEPS else float("nan")


class FailurePoints:
    """Where a training can go wrong. This one leaves everything as it is; a failure overrides what it spoils."""

    def before(self, step: int, task: Task) -> None:
        """Runs before anything else of the step."""

    def share_of_lr(self, step: int, share: float) -> float:  # noqa: ARG002
        """The share of the learning rate that the schedule gives to a step."""
        return share

    def batch(self, step: int, batch: Batch) -> Batch:  # noqa: ARG002
        """The batch that the loader gives."""
        return batch

    def loss(self, step: int, loss: Tensor) -> Tensor:  # noqa: ARG002
        """The loss that goes backward."""
        return loss

    def clears_gradients(self, step: int) -> bool:  # noqa: ARG002
        """Whether the gradients are gone when the next step begins."""
        return True


def loop(task: Task, trouble: FailurePoints, seed: int, notes: Notes) -> None:
    """Train for all steps of the task."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1000)
    schedule, kept = None, []
    if task.share_of_lr is not None:
        share = task.share_of_lr
        schedule = LambdaLR(task.optimizer, lambda done: trouble.share_of_lr(done + 1, share(done + 1)))
    for step in range(1, task.steps + 1):
        trouble.before(step, task)
        batch = trouble.batch(step, task.draw(generator))
        loss = trouble.loss(step, task.loss(task.model, batch))
        (task.scaler.scale(loss) if task.scaler else loss).backward()  # type: ignore[no-untyped-call]
        advance(task)
        if trouble.clears_gradients(step):
            task.optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
        notes.losses.append(loss.item())
        if task.test and step > task.steps - JUDGED_STEPS:
            kept.append({name: value.clone() for name, value in task.model.state_dict().items()})
    for state in kept:  # only now: tests between steps would make the last steps look slow
        task.model.load_state_dict(state)
        notes.tests.append(test(task))


def advance(task: Task) -> None:
    """One step of the optimizer."""
    if task.scaler and task.clip:
        task.scaler.unscale_(task.optimizer)
    if task.clip:
        clip_grad_norm_(task.model.parameters(), task.clip)
    if task.scaler:
        task.scaler.step(task.optimizer)
        task.scaler.update()
    else:
        task.optimizer.step()


@torch.no_grad()
def test(task: Task) -> float:
    """The mean loss on the test batches; no dropout, and batch norm with what it has learned."""
    task.model.eval()
    loss = task.test_loss or task.loss
    values: list[float] = [loss(task.model, batch).item() for batch in task.test]
    task.model.train()
    return sum(values) / len(values)
