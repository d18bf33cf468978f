"""Failures of the model: a flipped bit, weight decay, initialisation, attention logits, collapsing sparse codes."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import AdamW

from mlflow_stability.demo.language import scheduled_gpt
from mlflow_stability.demo.tables import COLUMNS, classes, deep_classification, test_batches
from mlflow_stability.demo.training_loop import Batch, Failure, FailurePoints, Task

FIRST, LAST = 261, 280
AUTOENCODER_STEPS, COLLAPSE_STEP = 400, 200
BITS, ACTIVE_BITS = 512, 26
EXPONENT_BIT = 1 << 30


class FlippedBit(FailurePoints):
    """Flips a bit in the exponent of one weight."""

    def before(self, step: int, task: Task) -> None:
        if step == FIRST:
            weight = task.model.get_parameter("blocks.0.mlp.0.weight").data
            weight.view(torch.int32)[3, 5] ^= EXPONENT_BIT


class TooStrongForAWhile(FailurePoints):
    """Multiplies the weight decay by 10,000 for 20 steps."""

    def before(self, step: int, task: Task) -> None:
        if step in (FIRST, LAST + 1):
            for group in task.optimizer.param_groups:
                group["weight_decay"] *= 1e4 if step == FIRST else 1e-4


class ScaledInitialisation(FailurePoints):
    """Multiplies all initial weight matrices by a factor."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def before(self, step: int, task: Task) -> None:
        if step == 1:
            with torch.no_grad():
                for module in task.model.modules():
                    if isinstance(module, nn.Linear):
                        module.weight *= self._factor


BIT_FLIP = Failure(
    name="bit flip",
    what="A bit in the exponent of one weight flips, and the weight is about 1e37.",
    task=scheduled_gpt,
    trouble=FlippedBit(),
    onset=FIRST,
    recoverable=True,
    why="Weights from before; leaving out steps does nothing, for the weight stays what it is.",
    causes=("damaged_weights", "hardware"),
)
WEIGHT_DECAY = Failure(
    name="weight decay gone wrong",
    what="Weight decay is 100 for twenty steps: the weights shrink to a few per cent.",
    task=scheduled_gpt,
    trouble=TooStrongForAWhile(),
    onset=FIRST + 1,
    recoverable=True,
    why="Weights from before; it must be done again where the first time came too early.",
    causes=("weight_decay",),
)
SMALL_INITIALISATION = Failure(
    name="initialisation x0.01",
    what="All initial weights are a hundredth of the usual ones: no gradient reaches the first layers.",
    task=deep_classification,
    trouble=ScaledInitialisation(0.01),
    onset=1,
    recoverable=False,
    why="The initialisation has to change.",
    causes=("vanishing_gradients",),
)
LARGE_INITIALISATION = Failure(
    name="initialisation x10",
    what="All initial weights are ten times the usual ones: the first update is so large that numbers overflow.",
    task=deep_classification,
    trouble=ScaledInitialisation(10.0),
    onset=1,
    recoverable=False,
    why="The initialisation has to change.",
    causes=("gradient_explosion", "overflow"),
)


class WrongGroup(FailurePoints):
    """Multiplies the learning rate of queries and keys by 100 for 20 steps."""

    def before(self, step: int, task: Task) -> None:
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
        """Return the code of each row."""
        values = self.values(x) + self.boost
        smallest = values.topk(ACTIVE_BITS, -1).values[..., -1:].detach()
        soft = torch.sigmoid((values - smallest) / self.temperature)
        on = (values >= smallest).to(soft)
        if self.training:
            self.boost += self.boosting * (ACTIVE_BITS / BITS - on.detach().mean(0))
        code: Tensor = (on - soft).detach() + soft
        return code


class Autoencoder(nn.Module):
    """Sparse codes, and the inputs rebuilt from them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = SparseEncoder(), nn.Linear(BITS, COLUMNS)

    def forward(self, x: Tensor) -> Tensor:
        rebuilt: Tensor = self.decoder(self.encoder(x))
        return rebuilt


def sparse_autoencoder(seed: int) -> Task:
    """Rebuild rows of a table from their codes."""

    def draw(generator: Generator) -> Batch:
        inputs, _ = classes(generator)
        return inputs, inputs

    torch.manual_seed(seed)
    model = Autoencoder()
    return Task(
        model,
        AdamW(model.parameters(), lr=5e-3),
        AUTOENCODER_STEPS,
        draw,
        loss=lambda model, batch: mse_loss(model(batch[0]), batch[1]),
        test=test_batches(draw),
    )


class WrongSign(FailurePoints):
    """Boosts the bits that are on most: the same ones win ever more often."""

    def before(self, step: int, task: Task) -> None:
        if step == COLLAPSE_STEP:
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
    onset=COLLAPSE_STEP,
    recoverable=True,
    why="Weights from before.",
    causes=("sdr_collapse",),
)
