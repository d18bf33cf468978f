"""What a training is made of: a model, an optimizer, data without end, a loss, and batches to judge it by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Generator, Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Task:
    """Everything that a loop needs."""

    model: nn.Module
    optimizer: Optimizer
    steps: int
    draw: Callable[[Generator], Batch]
    """The next batch; all chance in it comes from the generator."""
    loss: Callable[[nn.Module, Batch], Tensor]
    test: tuple[Batch, ...]
    """What the model is judged by in the end: the same batches for every seed."""
    test_loss: Callable[[nn.Module, Batch], Tensor] | None = None
    """Where it is judged by something else than what it is trained on."""
    share_of_lr: Callable[[int], float] | None = None
    """The schedule: the share of the learning rate at a step; None: it never changes."""
    clip: float | None = None
    """The norm at which gradients are clipped."""
    scaler: GradScaler | None = None
