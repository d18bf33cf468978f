"""The failure of `mlflow-stability demo`: a learning-rate jump, and later a batch that is nothing but padding."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from mlflow_stability.demo.char_gpt import CharGPT
from mlflow_stability.demo.failure_steps import FailureSteps, troubles_in
from mlflow_stability.demo.tasks.failure import Failure
from mlflow_stability.demo.tasks.loop import FailurePoints
from mlflow_stability.demo.tasks.task import Batch, Task
from mlflow_stability.demo.text import ALPHABET, encoded

LENGTH, BATCH = 32, 16
WARM_UP = 30
PADDING = -1


def demo_failure(steps: int) -> Failure:
    """The demo's training of so many steps, and what goes wrong in it."""
    troubles = troubles_in(steps)

    def demo_gpt(seed: int) -> Task:
        """A GPT that learns generated sentences."""
        torch.manual_seed(seed)
        data = torch.tensor(encoded(200_000))
        model = CharGPT(len(ALPHABET), LENGTH)
        return Task(
            model,
            torch.optim.AdamW(model.parameters(), lr=3e-3),
            steps,
            draw=lambda generator: _batch(data, generator),
            loss=mean_loss,
            test=(),
            share_of_lr=lambda step: share_of_lr(step, steps),
            clip=1.0,
        )

    return Failure(
        name="demo",
        what=(
            f"At steps {troubles.first} to {troubles.last} the learning rate is 30 times too high; the batch of step "
            f"{troubles.empty} is nothing but padding."
        ),
        task=demo_gpt,
        trouble=JumpAndPadding(troubles),
        onset=troubles.first + 1,
        recoverable=True,
        why="Weights from before the jump, and the step of the empty batch left out.",
        causes=("learning_rate_jump",),
    )


class JumpAndPadding(FailurePoints):
    """Both faults of the demo."""

    def __init__(self, troubles: FailureSteps) -> None:
        self._troubles = troubles

    def share_of_lr(self, step: int, share: float) -> float:
        """The share of the learning rate at a step."""
        return share * self._troubles.factor(step)

    def batch(self, step: int, batch: Batch) -> Batch:
        """The batch of a step."""
        given, following = batch
        return (given, torch.full_like(following, PADDING)) if step == self._troubles.empty else batch


def _batch(data: Tensor, generator: Generator) -> Batch:
    """Some places in the text, and the same one character later."""
    starts = torch.randint(len(data) - LENGTH - 1, (BATCH, 1), generator=generator)
    lines = data[starts + torch.arange(LENGTH + 1)]
    return lines[:, :-1], lines[:, 1:]


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The mean over the places that count, as many a script writes it: 0 / 0 where none does."""
    given, following = batch
    counts = (following != PADDING).float().flatten()
    scores = model(given).flatten(0, 1)
    losses = functional.cross_entropy(scores, following.flatten().clamp(min=0), reduction="none")
    return (losses * counts).sum() / counts.sum()


def share_of_lr(step: int, steps: int) -> float:
    """A warm-up, then half a cosine."""
    if step <= WARM_UP:
        return step / WARM_UP
    return 0.05 + 0.475 * (1 + math.cos(math.pi * (step - WARM_UP) / max(1, steps - WARM_UP)))
