"""Looks at the losses of the first steps, each time right before gradients are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.nn import Module

from mlflow_stability.probes.first_look.loss_graph import loss_input
from mlflow_stability.vocabulary.result import Finding

MAX_LOOKS = 8
"""Number of first backward passes that are looked at: those of a GAN's halves have graphs of their own."""


class FirstLook:
    """The first backward passes of a training."""

    part = "first look"

    def __init__(
        self,
        emit: Callable[[Finding], None],
        models: Callable[[], Sequence[Module]],
        step: Callable[[], int],
        stop: Callable[[], None],
    ) -> None:
        self._emit, self._models, self._step, self._stop = emit, models, step, stop
        self._looks = 0

    def at_loss(self, tensors: Any) -> None:
        """Look at what a backward pass begins from; the first finding is the last."""
        self._looks += 1
        losses = tensors if isinstance(tensors, list | tuple) else (tensors,)
        graphs = (loss for loss in losses if isinstance(loss, Tensor) and loss.grad_fn is not None)
        found = (loss_input(loss, self._models(), self._step()) for loss in graphs)
        finding = next((one for one in found if one is not None), None)
        if finding is not None:
            self._emit(finding)
        if finding is not None or self._looks >= MAX_LOOKS:
            self._stop()
