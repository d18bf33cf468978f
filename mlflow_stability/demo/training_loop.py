"""Small trainings: what a task is made of, the loop that trains it, and the points where it can fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Generator, Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Task:
    """A model, an optimizer, data without end, a loss, and batches to judge it by."""

    model: nn.Module
    optimizer: Optimizer
    steps: int
    draw: Callable[[Generator], Batch]  # the next batch; all chance in it comes from the generator
    loss: Callable[[nn.Module, Batch], Tensor]
    test: tuple[Batch, ...]  # batches that the model is judged by in the end, the same for every seed
    test_loss: Callable[[nn.Module, Batch], Tensor] | None = None
    """Loss that it is judged by; by default the training loss."""
    share_of_lr: Callable[[int], float] | None = None
    """Schedule: the share of the learning rate at a step; None: it is constant."""
    clip: float | None = None  # norm at which gradients are clipped
    scaler: GradScaler | None = None


def cosine(steps: int, warm_up: int = 20, floor: float = 0.05) -> Callable[[int], float]:
    """Return a schedule: a linear warm-up, then half a cosine down to `floor`."""

    def share(step: int) -> float:
        if step <= warm_up:
            return step / warm_up
        progress = min(1.0, (step - warm_up) / (steps - warm_up))
        return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))

    return share


JUDGED_STEPS = 20  # steps at the end whose mean is the final loss


@dataclass(slots=True)
class Notes:
    """Losses of a training, during and after it."""

    losses: list[float] = field(default_factory=list)  # the training loss of every step
    tests: list[float] = field(default_factory=list)
    """The loss on the test batches with the weights after each of the last steps."""

    @property
    def final_loss(self) -> float:
        """Mean test loss of the last steps; NaN for an incomplete training."""
        return sum(self.tests) / JUDGED_STEPS if len(self.tests) == JUDGED_STEPS else float("nan")


class FailurePoints:
    """Points where a training can fail; a failure overrides some of them."""

    def before(self, step: int, task: Task) -> None:
        """Run before anything else of the step."""

    def share_of_lr(self, step: int, share: float) -> float:  # noqa: ARG002
        """Return the share of the learning rate at a step, given that of the schedule."""
        return share

    def batch(self, step: int, batch: Batch) -> Batch:  # noqa: ARG002
        return batch

    def loss(self, step: int, loss: Tensor) -> Tensor:  # noqa: ARG002
        return loss

    def clears_gradients(self, step: int) -> bool:  # noqa: ARG002
        return True


def loop(task: Task, trouble: FailurePoints, seed: int, notes: Notes) -> None:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1000)
    schedule, last_states = None, []
    if task.share_of_lr is not None:
        share = task.share_of_lr
        schedule = LambdaLR(task.optimizer, lambda done: trouble.share_of_lr(done + 1, share(done + 1)))
    for step in range(1, task.steps + 1):
        trouble.before(step, task)
        batch = trouble.batch(step, task.draw(generator))
        loss = trouble.loss(step, task.loss(task.model, batch))
        (task.scaler.scale(loss) if task.scaler else loss).backward()  # type: ignore[no-untyped-call]
        if task.scaler and task.clip:
            task.scaler.unscale_(task.optimizer)
        if task.clip:
            clip_grad_norm_(task.model.parameters(), task.clip)
        if task.scaler:
            task.scaler.step(task.optimizer)
            task.scaler.update()
        else:
            task.optimizer.step()
        if trouble.clears_gradients(step):
            task.optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
        notes.losses.append(loss.item())
        if task.test and step > task.steps - JUDGED_STEPS:
            last_states.append({name: value.clone() for name, value in task.model.state_dict().items()})
    for state in last_states:  # only now: tests between steps would make the last steps look slow
        task.model.load_state_dict(state)
        notes.tests.append(test(task))


@torch.no_grad()
def test(task: Task) -> float:
    """Return the mean loss on the test batches, in evaluation mode."""
    task.model.eval()
    loss = task.test_loss or task.loss
    values: list[float] = [loss(task.model, batch).item() for batch in task.test]
    task.model.train()
    return sum(values) / len(values)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of a training; the same training without it is its healthy twin."""

    name: str
    what: str  # what goes wrong, in one sentence
    task: Callable[[int], Task]  # makes the training from a seed; failures with the same task have the same twin
    trouble: FailurePoints
    onset: int
    """The first step whose batch, loss, gradients or weights are not those of the twin: all steps before are the same,
    bit for bit.
    """
    causes: tuple[str, ...] = ()  # causes that are right in a diagnosis

    @property
    def twin(self) -> str:
        """The name that all failures with this twin share."""
        return self.task.__name__

    def train(self, seed: int, *, ill: bool, notes: Notes, steps: int | None = None) -> None:
        """Train it, or its twin, and write the losses into `notes`; fewer `steps` end it early."""
        self.train_task(self.task(seed), seed, ill=ill, notes=notes, steps=steps)

    def train_task(self, task: Task, seed: int, *, ill: bool, notes: Notes, steps: int | None = None) -> None:
        loop(replace(task, steps=steps or task.steps), self.trouble if ill else FailurePoints(), seed, notes)
