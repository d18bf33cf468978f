"""An engine as large trainings have them: it copies gradients into one flat fp32 buffer, clips and steps itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class FlatEngine:
    """Wraps a model and an optimizer of its flat copy; throws a step away where the norm is not finite."""

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: Callable[[Any], Optimizer],
        *,
        clip: float = 0.0,
        accumulate: int = 1,
        moves: bool = True,
    ) -> None:
        self.parameters = list(model.parameters())
        self.flat = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in self.parameters]))
        self.optimizer = make_optimizer([self.flat])
        self.clip, self.accumulate, self.moves = clip, accumulate, moves
        self.micro_batches = self.skipped = 0
        self.sum: Tensor | None = None
        self._norm: float | None = None

    def get_global_grad_norm(self) -> float | None:
        """The norm of the last step, before it was clipped."""
        return self._norm

    def backward(self, loss: Tensor) -> None:
        (loss / self.accumulate).backward()
        self.micro_batches += 1
        if self.moves:
            self._move()

    def step(self) -> None:
        if self.micro_batches % self.accumulate:
            return
        self._move()
        total, self.sum = self.sum, None
        assert total is not None
        norm = float(torch.linalg.vector_norm(total))
        if norm != norm or norm == float("inf"):
            self.skipped += 1
            self._norm = norm
            return
        if self.clip and norm > self.clip:
            total *= self.clip / norm
        self.flat.grad = total
        self.optimizer.step()
        self.flat.grad = None
        self._norm = norm
        for parameter, part in zip(self.parameters, self.flat.split([p.numel() for p in self.parameters]), strict=True):
            parameter.data.copy_(part.detach().view_as(parameter))

    def _move(self) -> None:
        if self.parameters[0].grad is None:
            return
        parts = [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in self.parameters
        ]
        gradients = torch.cat([part.flatten() for part in parts])
        self.sum = gradients if self.sum is None else self.sum + gradients
        for parameter in self.parameters:
            parameter.grad = None
