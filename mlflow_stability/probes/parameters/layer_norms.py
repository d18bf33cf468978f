"""Measures the norms of weights and gradients, of the whole model and by layer, and how they compare.

In: gates. Out: ``param_norm``, ``grad_param_ratio`` (gradient over weights) and ``lr_ratio`` (learning rate times
gradient over weights) of the whole model; by layer these and ``grad_norm``. Promised: two kernels over all tensors and
a few over their norms. All of it is over the parameters that are trained.

Gradients are measured as the optimizer gets them: after the script has clipped them. A layer that got no gradient has
a norm of 0. Where weights are all zero there is no ratio, and NaN stands for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.parameters.layer_layout import whole_signals
from mlflow_stability.probes.parameters.layers import HeldLayers
from mlflow_stability.probes.parameters.per_optimizer import Joined, PartsByOptimizer
from mlflow_stability.probes.probe import StepView, next_multiple
from mlflow_stability.probes.tensors.device_numbers import on_device
from mlflow_stability.probes.tensors.gradient_norm import dense_gradients
from mlflow_stability.probes.tensors.tensor_sums import squares

RATIOS = ("grad_param_ratio", "lr_ratio")


class LayerNorms:
    """The norms at the gate."""

    part = "norms of weights"

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
        """Take the norms of one optimizer's parameters."""
        held = view.layers.held(view.optimizer, view.step)
        parameters = held.parameters(view.optimizer)
        gradients, unknown = dense_gradients(parameters)
        with torch.no_grad():
            weights = squares(parameters)
            if weights is None:
                return
            found = squares(gradients)
            forces = weights.new_zeros(len(weights)) if found is None else found.to(weights.device, non_blocking=True)
            if view.unscale is not None:
                forces = forces / view.unscale.to(forces, non_blocking=True).square()
            rate = _rates(view.optimizer, held, forces)
            moves = forces * rate.square() if rate is not None else torch.full_like(forces, torch.nan)
            self._parts.add(view, held, torch.stack((weights, forces, moves)), unknown)

    def after_step(self, view: StepView) -> None:
        """All is measured at the gate."""

    def forget(self) -> None:
        """The cycle was interrupted half-way: let go of what was measured in it."""
        self._parts.drop()

    def blocks(self, step: int) -> Sequence[Block]:
        """The norms of the cycle."""
        joined = self._parts.take()
        if joined is None:
            return ()
        blocks: list[Block] = []
        with torch.no_grad():
            if step % self.every == 0 and joined.complete:
                norms = joined.rows.sum(1, keepdim=True).sqrt_()
                names = ("param_norm",) if joined.unknown else ("param_norm", *RATIOS)
                values = torch.cat((norms[:1], _over(norms[1:], norms[0])))[: len(names)]
                blocks.append(Block(whole_signals(names, joined.place), values.flatten()))
            if step % self.layers_every == 0:
                blocks.extend(_by_layer(joined))
        return blocks


def _by_layer(joined: Joined) -> list[Block]:
    norms = joined.layout.sums(joined.rows).sqrt_()
    forces = torch.cat((norms[1:2], _over(norms[1:], norms[0])))
    only = None
    if joined.unknown:
        hidden = joined.layout.touched_by(joined.unknown)
        only = tuple(at for at in range(len(joined.layout.names)) if at not in hidden)
    return [
        joined.layout.block(("param_norm",), norms[:1]),
        joined.layout.block(("grad_norm", *RATIOS), forces, only),
    ]


def _over(norms: Tensor, weights: Tensor) -> Tensor:
    return torch.where(weights > 0, norms / weights, torch.nan)


def _rates(optimizer: Optimizer, held: HeldLayers, like: Tensor) -> Tensor | None:
    """The learning rate of each parameter; None where a group has none."""
    rates: list[Any] = [group.get("lr") for group in optimizer.param_groups]
    if any(rate is None for rate in rates):
        return None
    if not any(isinstance(rate, Tensor) for rate in rates):
        return on_device([rates[group] for group in held.groups], like.device, like.dtype)
    row = [
        rate.detach().reshape(()).to(like, non_blocking=True) if isinstance(rate, Tensor) else like.new_full((), rate)
        for rate in rates
    ]
    return torch.stack(row)[on_device(held.groups, like.device, torch.long)]
