"""Failures inside the model: attention logits that grow, sparse codes that collapse."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import AdamW

from mlflow_stability.demo.tasks.failure import Failure
from mlflow_stability.demo.tasks.language import scheduled_gpt
from mlflow_stability.demo.tasks.loop import FailurePoints
from mlflow_stability.demo.tasks.tables import COLUMNS, classes, test_batches
from mlflow_stability.demo.tasks.task import Batch, Task

FIRST, LAST = 261, 280
STEPS, STEP = 400, 200
BITS, ACTIVE = 512, 26


class WrongGroup(FailurePoints):
    """Multiplies the learning rate of queries and keys by 100 for 20 steps."""

    def before(self, step: int, task: Task) -> None:
        """Runs before the step."""
        if FIRST <= step <= LAST:
            task.optimizer.param_groups[0]["lr"] *= 100


class SparseEncoder(nn.Module):
    """Sparse binary codes: the largest values are on, and the gradient is that of a sigmoid.

    Bits that are seldom on are boosted, so that all are used.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Linear(COLUMNS, BITS)
        self.boosting = 0.5
        self.register_buffer("boost", torch.zeros(BITS))
        self.register_buffer("temperature", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """The code of each row."""
        values = self.values(x) + self.boost
        least = values.topk(ACTIVE, -1).values[..., -1:].detach()
        soft = torch.sigmoid((values - least) / self.temperature)
        on = (values >= least).to(soft)
        if self.training:
            self.boost += self.boosting * (ACTIVE / BITS - on.detach().mean(0))
        code: Tensor = (on - soft).detach() + soft
        return code


class Autoencoder(nn.Module):
    """Sparse codes, and what is rebuilt from them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = SparseEncoder(), nn.Linear(BITS, COLUMNS)

    def forward(self, x: Tensor) -> Tensor:
        """The rebuilt rows."""
        rebuilt: Tensor = self.decoder(self.encoder(x))
        return rebuilt


def sparse_autoencoder(seed: int) -> Task:
    """Rebuilds rows of a table from their codes."""

    def draw(generator: Generator) -> Batch:
        inputs, _ = classes(generator)
        return inputs, inputs

    torch.manual_seed(seed)
    model = Autoencoder()
    return Task(
        model,
        AdamW(model.parameters(), lr=5e-3),
        STEPS,
        draw,
        loss=lambda model, batch: mse_loss(model(batch[0]), batch[1]),
        test=test_batches(draw),
    )


class WrongSign(FailurePoints):
    """Boosts the bits that are on most: the same ones win ever more often."""

    def before(self, step: int, task: Task) -> None:
        """Runs before the step."""
        if step == STEP:
            assert isinstance(task.model, Autoencoder)
            task.model.encoder.boosting = -20.0


ATTENTION_LOGITS = Failure(
    name="attention logit blow-up",
    what="For twenty steps the queries and keys learn a hundred times too fast; attention then looks at one place.",
    task=scheduled_gpt,
    trouble=WrongGroup(),
    onset=FIRST + 1,
    recoverable=True,
    why="Weights from before; a softmax that is saturated has no gradient to come back by.",
    causes=("learning_rate_jump", "attention_logit_growth"),
)
SDR_COLLAPSE = Failure(
    name="SDR collapse",
    what="From a step on, boosting has the wrong sign: the bits that are on most win ever more often.",
    task=sparse_autoencoder,
    trouble=WrongSign(),
    onset=STEP,
    recoverable=True,
    why="Weights from before.",
    causes=("sdr_collapse",),
)
