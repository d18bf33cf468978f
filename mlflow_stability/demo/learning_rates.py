"""Failures of the learning rate: a jump, too high or too low from the beginning, no warm-up."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Adam

from mlflow_stability.demo.language import LENGTH, LETTERS, language_task, plain_gpt, scheduled_gpt
from mlflow_stability.demo.tables import classification
from mlflow_stability.demo.training_loop import Failure, FailurePoints, Task, cosine

FIRST, LAST = 261, 280


class TooHighForAWhile(FailurePoints):
    """Multiplies the learning rate by 30 for 20 steps."""

    def share_of_lr(self, step: int, share: float) -> float:
        return 30 * share if FIRST <= step <= LAST else share


class SetAtTheBeginning(FailurePoints):
    """Sets the learning rate at the first step."""

    def __init__(self, rate: float) -> None:
        self._rate = rate

    def before(self, step: int, task: Task) -> None:
        if step == 1:
            for group in task.optimizer.param_groups:
                group["lr"] = self._rate


class MuchLower(FailurePoints):
    """Multiplies the learning rate by a ten-millionth."""

    def share_of_lr(self, _step: int, share: float) -> float:
        return 1e-7 * share


STEPS, WARM_UP = 200, 100
WIDTH, LAYERS = 32, 8


class PostNormTransformer(nn.Module):
    """A deep transformer with its norms behind the residuals, which needs a warm-up."""

    def __init__(self) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=False)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, LETTERS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the scores of the next letter."""
        x = self.characters(inputs) + self.places(torch.arange(inputs.shape[1]))
        scores: Tensor = self.head(self.layers(x, mask=self.mask, is_causal=True))
        return scores


def post_norm_transformer(seed: int) -> Task:
    """Train with a warm-up of half of the training."""
    return language_task(
        seed,
        PostNormTransformer,
        lambda model: Adam(model.parameters(), lr=1e-2),
        share_of_lr=cosine(STEPS, WARM_UP),
        steps=STEPS,
    )


class NoWarmUp(FailurePoints):
    """Begins with the full learning rate."""

    def share_of_lr(self, step: int, share: float) -> float:
        return max(share, 1.0) if step <= WARM_UP else share


JUMP = Failure(
    name="learning rate x30",
    what="The schedule gives thirty times the learning rate for twenty steps.",
    task=scheduled_gpt,
    trouble=TooHighForAWhile(),
    onset=FIRST + 1,
    recoverable=True,
    why="Weights from before the jump; it must be done again where the first time came too early in the jump.",
    causes=("learning_rate_jump",),
)
TOO_HIGH = Failure(
    name="GPT: lr 1.0 from 0",
    what="The learning rate of AdamW is 1.0 from the first step.",
    task=plain_gpt,
    trouble=SetAtTheBeginning(1.0),
    onset=2,
    recoverable=False,
    why="There was never a good state; the learning rate has to change.",
    causes=("learning_rate_too_high",),
)
TOO_LOW = Failure(
    name="learning rate x1e-7",
    what="The learning rate is a ten-millionth of the usual one: the loss stays where it began.",
    task=classification,
    trouble=MuchLower(),
    onset=2,
    recoverable=False,
    why="The learning rate has to change.",
    causes=("learning_rate_too_low",),
)
NO_WARM_UP = Failure(
    name="missing warm-up",
    what="The full learning rate from the first step on: the post-norm transformer falls to guessing frequencies.",
    task=post_norm_transformer,
    trouble=NoWarmUp(),
    onset=2,
    recoverable=False,
    why="There was never a good state; the schedule has to change.",
    causes=("no_warm_up", "learning_rate_too_high"),
)
