"""Takes the weights of some heads home, for a picture.

In: the scores of an attention, on their device. Out: an `AttentionMap`, once it has arrived at the host. Promised: one
map at a time is on the device, of at most `MOST_HEADS` heads and the first tokens; nothing waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mlflow_stability.probes.attention_numbers import first_weights
from mlflow_stability.probes.attention_scores import Scores
from mlflow_stability.probes.readback import Parcel
from mlflow_stability.vocabulary.attention_map import AttentionMap

MOST_HEADS = 32
"""Of so many heads, at even distances, the weights are kept; the mean is over all."""
MOST_LAYERS = 12
"""Of so many layers, at even distances."""


@dataclass(slots=True)
class Drawing:
    """A map on its way."""

    parcel: Parcel
    heads: tuple[int, ...]
    tokens: tuple[int, int]
    cross: bool
    step: int = 0
    layer: str = ""
    number: int = 0

    def finished(self) -> AttentionMap:
        """The map; waits for it where it has not arrived."""
        weights, average, numbers, ahead = self.parcel.opened()
        return AttentionMap(
            step=self.step,
            attempt=0,
            layer=self.layer,
            layer_number=self.number,
            heads=self.heads,
            weights=weights,
            average=average,
            entropy=numbers[0],
            max_logit=numbers[1],
            kind="cross" if self.cross else "self",
            causal=not self.cross and not ahead.any(),
            tokens=self.tokens,
        )


def drawn(scores: Scores, numbers: Tensor, tokens: int, cross: bool) -> Drawing:
    """Begin to take a map home; `numbers`: what is known of each head."""
    _, heads, queries, keys = scores.shape
    weights = first_weights(scores, tokens)
    step = -(-heads // MOST_HEADS)
    average = weights.mean(0)
    ahead = (average.triu(1) > 0).any().reshape(1)
    kept = weights[::step].to(torch.float16)
    numbers, average = numbers.to(torch.float32), average.to(torch.float32)
    return Drawing(Parcel([kept, average, numbers, ahead]), tuple(range(0, heads, step)), (queries, keys), cross)


def chosen(layers: int) -> frozenset[int]:
    """Which of so many layers are drawn: the first, the last, and others at even distances."""
    if layers <= MOST_LAYERS:
        return frozenset(range(layers))
    return frozenset(round(at * (layers - 1) / (MOST_LAYERS - 1)) for at in range(MOST_LAYERS))
