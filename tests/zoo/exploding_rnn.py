"""A recurrent network meets sequences that are much longer than all before."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import SGD

from mlflow_stability.demo.tables import test_batches
from mlflow_stability.demo.training_loop import Batch, Failure, FailurePoints, Task, cosine

STEPS, BATCH, WIDTH = 1000, 32, 32
USUAL, LONG = 12, 300
STEP = 561


class IdentityRNN(nn.Module):
    """Rectified units that begin by keeping what they hold: what grows a little in a step grows a lot in many."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(2, WIDTH, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(WIDTH, 1)
        with torch.no_grad():
            nn.init.eye_(self.rnn.weight_hh_l0)
            self.rnn.weight_ih_l0 *= 2.0

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.rnn(x)
        output: Tensor = self.head(states[:, -1])
        return output


def sums(dice: Generator, length: int = USUAL) -> Batch:
    """Numbers, some of them marked; the target is the sum of the marked ones, with noise."""
    numbers = torch.rand(BATCH, length, generator=dice)
    marks = (torch.rand(BATCH, length, generator=dice) < 0.3).float()
    noise = 0.7 * torch.randn(BATCH, 1, generator=dice)
    return torch.stack([numbers, marks], dim=-1), (numbers * marks).sum(1, keepdim=True) + noise


def recurrent(seed: int) -> Task:
    torch.manual_seed(seed)
    model = IdentityRNN()
    return Task(
        model,
        SGD(model.parameters(), lr=0.003, momentum=0.9),
        STEPS,
        sums,
        loss=lambda model, batch: mse_loss(model(batch[0]), batch[1]),
        test=test_batches(sums),
        share_of_lr=cosine(STEPS),
    )


class LongSequences(FailurePoints):
    def batch(self, step: int, batch: Batch) -> Batch:
        return sums(torch.Generator().manual_seed(step), LONG) if step == STEP else batch


FAILURE = Failure(
    name="exploding RNN",
    what="One batch has sequences of 300 where 12 are usual, and its gradient explodes over time; nothing is clipped.",
    task=recurrent,
    trouble=LongSequences(),
    onset=STEP,
)
