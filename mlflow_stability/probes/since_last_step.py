"""Tells the first step of a training without ``backward()`` from a step that still belongs to the last cycle.

Both come without a backward pass since the last step. What follows a backward pass with two optimizers was there when
the first of them stepped; a new training makes its optimizer, or computes its loss, afterwards. Optimizers that are
made are seen by a hook; that something was computed shows in autograd's count of nodes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch.optim import Optimizer

nodes_made: Callable[[], int] = getattr(torch.autograd, "_get_sequence_nr", lambda: 0)
"""How many nodes of graphs this thread has made so far; without it only optimizers that are made are known."""


class SinceLastStep:
    """What has happened since an optimizer ended its step."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Optimizer]] = []
        self._nodes = 0
        self._in_backward = False

    def optimizer_made(self, optimizer: Optimizer) -> None:
        """Runs when an optimizer was made."""
        self._made = [each for each in self._made if each() is not None]
        self._made.append(weakref.ref(optimizer))

    def backward_began(self) -> None:
        """Runs before a backward pass: an optimizer may step inside it, where checkpoints compute anew."""
        self._in_backward = True

    def backward_ended(self) -> None:
        """Runs after it."""
        self._in_backward = False
        self.step_ended()

    def step_ended(self) -> None:
        """Runs after each step."""
        if self._in_backward:
            return
        if self._made:
            self._made.clear()
        self._nodes = nodes_made()

    def anything_new(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer is new since then, or anything was computed that has gradients."""
        if self._in_backward:
            return False
        return nodes_made() != self._nodes or any(each() is optimizer for each in self._made)
