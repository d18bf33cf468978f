"""Says where an optimizer keeps what it knows of each parameter.

In: optimizers. Out: the one that holds the state, and the state. Guarantees: nothing is made and nothing communicated.
"""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

ZERO = "ZeroRedundancyOptimizer"
"""Told by its name: importing it warns."""


def holder_of_state(optimizer: Optimizer) -> Optimizer:
    """The optimizer itself; of `ZeroRedundancyOptimizer` the one inside it, which has the state of this rank alone."""
    inner = getattr(optimizer, "optim", None) if type(optimizer).__name__ == ZERO else None
    return inner if isinstance(inner, Optimizer) else optimizer


def state_of(optimizer: Optimizer) -> dict[Any, Any]:
    """What the optimizer knows of each parameter, by parameter."""
    state: dict[Any, Any] = holder_of_state(optimizer).state
    return state
