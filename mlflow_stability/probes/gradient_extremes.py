"""Measures the largest gradient value and the share of gradient values that are zero, of the whole model.

In: gates. Out: ``grad_max`` and ``grad_zeros``. Promised: nothing is copied; sparse gradients are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.cycle_parts import CycleParts
from mlflow_stability.probes.dense_gradients import dense_gradients
from mlflow_stability.probes.device_numbers import on_device
from mlflow_stability.probes.gate_view import GateView
from mlflow_stability.probes.layer_layout import whole_signals
from mlflow_stability.probes.probe import next_multiple
from mlflow_stability.probes.tensor_sums import largest_of, nonzeros_of, scalars

QUANTITIES = ("grad_max", "grad_zeros")


class GradientExtremes:
    """The ends of the gradients' distribution."""

    part = "gradient extremes"

    def __init__(self, every: int = 100) -> None:
        self.every = every
        """Every how many steps they are measured."""
        self._parts = CycleParts()

    def due(self, step: int) -> bool:
        """Whether this cycle is to be measured."""
        return step % self.every == 0

    def next_due(self, step: int) -> int:
        """The next step that is due."""
        return next_multiple(step, self.every)

    def at_gate(self, view: GateView) -> None:
        """Look at one optimizer's gradients."""
        held = view.layers.held(view.optimizer, view.step)
        gradients, _ = dense_gradients(held.parameters(view.optimizer))
        largest, nonzeros = scalars(gradients, largest_of), scalars(gradients, nonzeros_of)
        if largest is None or nonzeros is None:
            return
        with torch.no_grad():
            if view.unscale is not None:
                largest = largest / view.unscale.to(largest, non_blocking=True)
            sizes = on_device([0 if each is None else each.numel() for each in gradients], largest.device, torch.long)
            self._parts.add(view, held, torch.stack((largest, nonzeros, sizes.to(largest))))

    def after_step(self, view: GateView) -> None:
        """All is measured at the gate."""

    def forget(self) -> None:
        """The cycle was interrupted half-way: let go of what was measured in it."""
        self._parts.drop()

    def blocks(self, _step: int) -> Sequence[Block]:
        """The extremes of the cycle."""
        joined = self._parts.take()
        if joined is None or not joined.complete:
            return ()
        with torch.no_grad():
            return [Block(whole_signals(QUANTITIES, joined.place), _values(*joined.rows))]


def _values(largest: Tensor, nonzeros: Tensor, sizes: Tensor) -> Tensor:
    return torch.stack((largest.max(), 1.0 - nonzeros.sum() / sizes.sum()))
