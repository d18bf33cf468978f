"""What a meter asks of an autopilot, and when.

Guarantees: the autopilot hears of each place once, in order; it acts on what was measured and never changes what is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.step.step_capture import StepCapture


class StepControl(Protocol):
    """Who acts. None of these may raise, unless the training is to end."""

    def before_backward(self, tensors: Any) -> None:
        """Runs before anything else of a backward pass."""

    def before_closure(self, optimizer: Optimizer) -> None:
        """Runs right before a step that was given a closure."""

    def closure_begins(self, optimizer: Optimizer) -> None:
        """Runs before each evaluation of a closure."""

    def evaluated_again(self, optimizer: Optimizer) -> None:
        """Runs after each further evaluation."""

    def before_step(
        self,
        optimizer: Optimizer,
        capture: StepCapture,
        place: str,
        norm: Tensor | None,
        companions: Sequence[Optimizer],
    ) -> None:
        """Runs when the gradients are complete and measured, and not used yet."""

    def swallowed(self, optimizer: Optimizer, capture: StepCapture, place: str) -> None:
        """Runs when a loss scaler threw a step away."""

    def step_ending(self, optimizer: Optimizer) -> bool:
        """Runs right after a step; whether it was skipped."""

    def step_over(self, capture_over: bool, is_whole: bool) -> None:
        """Runs after that, when all is as the script expects it. `is_whole`: no other training is expected in it."""

    def was_rolled_back(self) -> bool:
        """Whether it set the training back since this was asked last."""

    def capture_ended(self) -> None:
        """Runs before the reading of a capture is asked for."""


ControlFor: TypeAlias = Callable[[Any], StepControl | None]
"""Gives the autopilot of what the session calls the owner of a capture: its recording."""
