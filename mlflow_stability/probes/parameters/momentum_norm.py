"""Measures the norm of the momentum that optimizers carry from step to step, of the whole model and by layer.

In: ends of steps. Out: ``momentum_norm``: of Adam's ``exp_avg``, or of the momentum buffer of SGD, Muon and others.
Promised: one kernel over all buffers; an optimizer's state is read and never made.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.parameters.layer_layout import whole_signals
from mlflow_stability.probes.parameters.per_optimizer import PartsByOptimizer
from mlflow_stability.probes.probe import StepView, next_multiple
from mlflow_stability.probes.tensors.tensor_sums import squares

BUFFERS = ("exp_avg", "momentum_buffer")
QUANTITIES = ("momentum_norm",)


class MomentumNorm:
    """The first moments."""

    part = "momentum"

    def __init__(self, every: int = 10, layers_every: int = 100) -> None:
        self.every = every
        """Every how many steps the whole model is measured, ..."""
        self.layers_every = layers_every
        """... and every how many steps its layers."""
        self._parts = PartsByOptimizer()

    def due(self, step: int) -> bool:
        """Whether this cycle is to be measured."""
        return step % self.every == 0 or step % self.layers_every == 0

    def next_due(self, step: int) -> int:
        """The next step that is due."""
        return next_multiple(step, self.every, self.layers_every)

    def before_step(self, view: StepView) -> None:
        """The momentum is measured after the step."""

    def after_step(self, view: StepView) -> None:
        """Take the norms of one optimizer's buffers."""
        held = view.layers.held(view.optimizer, view.step)
        states = view.optimizer.state
        found = squares([_buffer(states.get(each)) for each in held.parameters(view.optimizer)])
        if found is not None:
            self._parts.add(view, held, found.unsqueeze(0))

    def forget(self) -> None:
        """The cycle was interrupted half-way: let go of what was measured in it."""
        self._parts.drop()

    def blocks(self, step: int) -> Sequence[Block]:
        """The momentum of the cycle."""
        joined = self._parts.take()
        if joined is None:
            return ()
        blocks: list[Block] = []
        with torch.no_grad():
            if step % self.every == 0 and joined.complete:
                blocks.append(Block(whole_signals(QUANTITIES, joined.place), joined.rows.sum(1).sqrt_()))
            if step % self.layers_every == 0:
                blocks.append(joined.layout.block(QUANTITIES, joined.layout.sums(joined.rows).sqrt_()))
        return blocks


def _buffer(state: object) -> Tensor | None:
    """The first moment; None where there is none, or none that plain arithmetic could read."""
    if not isinstance(state, dict):
        return None
    for name in BUFFERS:
        buffer = state.get(name)
        if type(buffer) is Tensor and buffer.layout is torch.strided and buffer.is_floating_point():
            return buffer
    return None
