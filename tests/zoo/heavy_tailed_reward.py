"""A policy is trained on rewards with heavy tails, and a few rewards are far too large."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import log_softmax, softmax
from torch.optim import SGD

from mlflow_stability.demo.tables import COLUMNS, test_batches
from mlflow_stability.demo.training_loop import Batch, Failure, FailurePoints, Task, cosine

STEPS, BATCH, ACTIONS = 800, 128, 6
STEP = 431
ABSURD = 8
TAIL = 3.0
"""Degrees of freedom of Student's t: its variance is finite, its fourth moment is not."""


def preferences() -> Tensor:
    """How much reward each action brings for each thing that is seen."""
    return torch.randn(COLUMNS, ACTIONS, generator=torch.Generator().manual_seed(7)) / 2.0


def situations(dice: Generator) -> Batch:
    """What is seen, and all the chance of one round: it decides the action and the noise in each action's reward."""
    seen = torch.randn(BATCH, COLUMNS, generator=dice)
    gauss = torch.randn(BATCH, ACTIONS, 4, generator=dice)
    noise = gauss[..., 0] / (gauss[..., 1:].square().sum(-1) / TAIL).sqrt()
    chance = torch.rand(BATCH, ACTIONS, generator=dice)
    return seen, torch.stack([chance, seen @ preferences() + 0.3 * noise], dim=-1)


def reinforce(model: nn.Module, batch: Batch) -> Tensor:
    """The loss of REINFORCE: draw an action by its probability, and weigh its logarithm by the reward."""
    seen, (chance, rewards) = batch[0], batch[1].unbind(-1)
    scores = model(seen)
    with torch.no_grad():
        action = (scores - (-chance.log()).log()).argmax(-1, keepdim=True)
    reward = rewards.gather(1, action)
    return -(log_softmax(scores, -1).gather(1, action) * (reward - reward.median())).mean()


def regret(model: nn.Module, batch: Batch) -> Tensor:
    """How much reward is missed, on average, against the best action."""
    expected = batch[0] @ preferences()
    return (expected.amax(-1) - (softmax(model(batch[0]), -1) * expected).sum(-1)).mean()


def policy(seed: int) -> Task:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(COLUMNS, 64), nn.Tanh(), nn.Linear(64, ACTIONS))
    return Task(
        model,
        SGD(model.parameters(), lr=0.1, momentum=0.9),
        STEPS,
        situations,
        loss=reinforce,
        test=test_batches(situations),
        test_loss=regret,
        share_of_lr=cosine(STEPS),
    )


class AbsurdRewards(FailurePoints):
    def batch(self, step: int, batch: Batch) -> Batch:
        if step == STEP:
            batch[1][:ABSURD, :, 1] = 1e5
        return batch


FAILURE = Failure(
    name="heavy-tailed reward",
    what="Rewards have heavy tails all the time; eight of one batch are 100,000, and their actions stay for ever.",
    task=policy,
    trouble=AbsurdRewards(),
    onset=STEP,
)
