"""What a training of this folder is: a script in a function, the score that it must reach, and what it has trained."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a training."""

    score: float
    """Accuracy, return or loss, as the script computes it."""
    trained: tuple[nn.Module | Tensor, ...]
    """What was trained, averages and target networks included."""

    def values(self) -> list[Tensor]:
        """Every parameter and buffer."""
        return [
            value.detach()
            for part in self.trained
            for value in ((part,) if isinstance(part, Tensor) else part.state_dict().values())
        ]


@dataclass(frozen=True, slots=True)
class Tutorial:
    """A training with what shows that it is healthy."""

    train: Callable[[], Outcome]
    """Draws from the generators of torch, NumPy and Python, as scripts do."""
    at_least: float = float("-inf")
    at_most: float = float("inf")

    @property
    def name(self) -> str:
        return self.train.__name__

    def learned(self, outcome: Outcome) -> bool:
        return self.at_least <= outcome.score <= self.at_most

    def run(self, seed: int) -> Outcome:
        """Train with all generators seeded, on one thread."""
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        return self.train()
