"""A deep transformer with its norms behind the residuals is trained without warm-up."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Adam
from zoo.failure import Failure
from zoo.language import LENGTH, LETTERS, language_task
from zoo.loop import Trouble
from zoo.schedules import cosine
from zoo.task import Task

STEPS, WARM_UP = 200, 100
WIDTH, LAYERS = 32, 8


class PostNormTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=False)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, LETTERS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, given: Tensor) -> Tensor:
        x = self.characters(given) + self.places(torch.arange(given.shape[1]))
        scores: Tensor = self.head(self.layers(x, mask=self.mask, is_causal=True))
        return scores


def post_norm_transformer(seed: int) -> Task:
    return language_task(
        seed,
        PostNormTransformer,
        lambda model: Adam(model.parameters(), lr=1e-2),
        share_of_lr=cosine(STEPS, WARM_UP),
        steps=STEPS,
    )


class NoWarmUp(Trouble):
    def share_of_lr(self, step: int, share: float) -> float:
        return max(share, 1.0) if step <= WARM_UP else share


FAILURE = Failure(
    name="missing warm-up",
    what="The full learning rate from the first step on: the post-norm transformer falls to guessing frequencies.",
    task=post_norm_transformer,
    trouble=NoWarmUp(),
    onset=2,
    recoverable=False,
    why="It breaks before anything good was there to go back to; the schedule has to change.",
)
