"""Measures the norm of the momentum that optimizers carry from step to step, of the whole model and by layer.

In: ends of steps. Out: ``momentum_norm``: of Adam's ``exp_avg``, or of the momentum buffer of SGD, Muon and others.
Guarantees: one kernel over all buffers; an optimizer's state is read and never made.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.parameters.per_optimizer import PartsByOptimizer, WholeNorms, whole_norm
from mlflow_stability.probes.probe import NORMS_EVERY, PeriodicProbe, ProbeFactory, StepView
from mlflow_stability.probes.tensors.tensor_sums import squares
from mlflow_stability.vocabulary.measured import SignalType

SIGNALS = (
    SignalType(
        "momentum_norm",
        "L2 norm of the optimizer's momentum",
        "optimizer",
        exported="llm_momentum_norm",
        by_layer=True,
        combined="norm",
    ),
)

BUFFERS = ("exp_avg", "momentum_buffer")
QUANTITIES = tuple(each.quantity for each in SIGNALS)


class MomentumNorm(PeriodicProbe):
    """The first moments."""

    part = "momentum"

    def __init__(self, every: int = 10, layers_every: int = 100) -> None:
        super().__init__(every, layers_every)
        self.every = every
        """Every how many steps the whole model is measured, ..."""
        self.layers_every = layers_every
        """... and every how many steps its layers."""
        self._parts, self._whole = PartsByOptimizer(), WholeNorms()

    def after_step(self, view: StepView) -> None:
        """Take the norms of one optimizer's buffers."""
        held = view.layers.held(view.optimizer, view.step)
        if held.is_split:
            return
        states = view.optimizer.state
        buffers = [_buffer(states.get(each)) for each in held.parameters(view.optimizer)]
        there = [each for each in buffers if each is not None]
        if there:
            with torch.no_grad():
                self._whole.add(view, held, whole_norm(there))
        if view.step % self.layers_every == 0:
            found = squares(buffers)
            if found is not None:
                self._parts.add(view, held, found.unsqueeze(0))

    def forget(self) -> None:
        """The capture was interrupted: let go of what was measured in it."""
        self._parts.drop()
        self._whole.drop()

    def blocks(self, step: int) -> Sequence[Block]:
        """The momentum of the capture."""
        joined = self._parts.take()
        blocks = list(self._whole.block(QUANTITIES, lambda norm: (norm,)))
        if step % self.every:
            blocks = []
        if joined is not None:
            with torch.no_grad():
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


PROBES: tuple[ProbeFactory, ...] = (lambda context: MomentumNorm(NORMS_EVERY, context.layers),)
