"""Tells the first step of a training without ``backward()`` from a step that still belongs to the last cycle.

Both come without a backward pass since the last step. What follows a backward pass with two optimizers was there when
the first of them stepped; a new training makes its optimizer, or computes its loss, afterwards. Optimizers that are
made are seen by a hook; that something was computed shows in autograd's count of nodes.
"""

from __future__ import annotations

import weakref

from torch.optim import Optimizer

from mlflow_stability.probes import torch_api


class SinceLastStep:
    """What has happened since an optimizer ended its step."""

    def __init__(self) -> None:
        self._made: dict[int, weakref.ref[Optimizer]] = {}
        """By identity; one whose object is gone is overwritten when its number is used again."""
        self._nodes = 0
        self._in_backward = False

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """Runs when an optimizer was made."""
        self._made[id(optimizer)] = weakref.ref(optimizer)

    def backward_began(self) -> None:
        """Runs before a backward pass: an optimizer may step inside it, where checkpoints compute anew."""
        self._in_backward = True

    def backward_ended(self) -> None:
        """Runs after it."""
        self._in_backward = False
        self._nodes = torch_api.get_sequence_nr()

    def step_ended(self) -> None:
        """Runs after each step."""
        if self._made:
            self._made.clear()
        if not self._in_backward:
            self._nodes = torch_api.get_sequence_nr()

    def is_new(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer was made since the last step of any."""
        made = self._made.get(id(optimizer)) if self._made else None
        return made is not None and made() is optimizer

    def anything_new(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer is new since then, or anything was computed that has gradients."""
        if self._in_backward:
            return False
        return torch_api.get_sequence_nr() != self._nodes or self.is_new(optimizer)
