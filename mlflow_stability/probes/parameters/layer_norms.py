"""Norms of weights and gradients and their ratios, of the whole model and by layer.

``param_norm``, ``grad_param_ratio`` (gradient over weights) and ``lr_ratio`` (learning rate times gradient over
weights) of the whole model; by layer these and ``grad_norm``; all over the parameters that are trained. Gradients are
measured as the optimizer gets them: after the script has clipped them. A layer without a gradient has a norm of 0.
Where all weights are zero, ratios are NaN. Guarantees: two kernels over all tensors and a few over their norms.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.block import Block
from mlflow_stability.probes.gradient_norm import dense_gradients, local_part
from mlflow_stability.probes.parameters.layers import HeldLayers
from mlflow_stability.probes.parameters.per_optimizer import (
    Joined,
    OptimizerProbe,
    on_host_if_there,
    ratio,
    weights_of,
    whole_norm,
)
from mlflow_stability.probes.probe import NORMS_EVERY, ProbeFactory, StepView
from mlflow_stability.probes.tensor_sums import on_device, squares
from mlflow_stability.vocabulary.measured.signal_type import SignalType, signals

SIGNALS = signals(
    SignalType(
        "param_norm", "L2 norm of the weights", topic="optimizer", exported="llm_parameter_norm", combined="norm"
    ),
    SignalType(
        "grad_param_ratio",
        "gradient norm over the norm of the weights",
        topic="gradients",
        exported="llm_gradient_parameter_ratio",
        left_out="nan",
    ),
    SignalType(
        "lr_ratio",
        "learning rate times gradient norm over the norm of the weights",
        topic="optimizer",
        exported="llm_learning_rate_ratio",
        left_out="nan",
    ),
    by_layer=True,
)

RATIOS = ("grad_param_ratio", "lr_ratio")


class LayerNorms(OptimizerProbe):
    part = "norms of weights"

    def __init__(self, every: int = 10, layers_every: int = 100) -> None:
        super().__init__(every, layers_every)
        self._some_unknown = False  # there are gradients whose norm is unknown here

    def before_step(self, view: StepView) -> None:
        held = view.layers.held(view.optimizer, view.step)
        parameters = held.parameters(view.optimizer)
        if not parameters or held.is_split:
            return
        gradients, unknown = dense_gradients(parameters)
        self._some_unknown = self._some_unknown or bool(unknown)
        by_layer = view.step % self.layers_every == 0
        rate = None if by_layer else _one_rate(view.optimizer)
        with torch.no_grad():
            if rate is not None:
                if view.norm is not None and held.is_all_of(view.optimizer) and not unknown:
                    forces = view.norm if isinstance(view.norm, float) else on_host_if_there(view.norm)
                else:
                    forces = whole_norm([gradient for gradient in gradients if gradient is not None])
                    if view.unscale is not None:
                        forces = forces / on_host_if_there(view.unscale)
                self._whole.add(view, held, weights_of(view, parameters).norm, forces, forces * rate)
                return
            rows = _squares(view, held, parameters, gradients)
            self._whole.add(view, held, *map(on_host_if_there, rows.sum(1).sqrt_().unbind()))
        if by_layer:
            self._parts.add(view, held, rows, unknown)

    def forget(self) -> None:
        super().forget()
        self._some_unknown = False

    def blocks(self, step: int) -> Sequence[Block]:
        joined = self._parts.take()
        names = ("param_norm",) if self._some_unknown else ("param_norm", *RATIOS)
        whole = self._whole.block(names, lambda w, f, m: (w, ratio(f, w), ratio(m, w))[: len(names)])
        self._some_unknown = False
        with torch.no_grad():
            layers = [] if joined is None else _by_layer(joined)
        return [*(whole if step % self.every == 0 else ()), *layers]


def _squares(
    view: StepView, held: HeldLayers, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> Tensor:
    weights, forces = squares(parameters), squares(gradients)
    assert weights is not None
    forces = weights.new_zeros(len(weights)) if forces is None else forces.to(weights.device, non_blocking=True)
    if view.unscale is not None:
        forces = forces / view.unscale.to(forces, non_blocking=True).square()
    rates = rates_by_parameter(view.optimizer, held.groups, forces)
    return torch.stack((weights, forces, forces * rates.square()))


def _one_rate(optimizer: Optimizer) -> float | Tensor | None:
    rates: list[float | Tensor | None] = [group.get("lr") for group in optimizer.param_groups]
    first = rates[0]
    if len(rates) > 1 and (not {*map(type, rates)} <= {float, int} or len({*rates}) > 1):
        return None
    if isinstance(first, Tensor):
        return on_host_if_there(first.detach())
    # `float.__float__`, because a subclass of the script may convert itself in another way.
    return nan if first is None else float.__float__(first) if isinstance(first, float) else float(first)


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


def rates_by_parameter(optimizer: Optimizer, groups: Sequence[int], like: Tensor) -> Tensor:
    """Return the learning rate of each parameter, by its group; NaN where a group has none."""
    rates: list[Any] = [group.get("lr", nan) for group in optimizer.param_groups]
    if not any(isinstance(rate, Tensor) for rate in rates):
        return on_device([rates[group] for group in groups], like.device, like.dtype)
    row = [
        local_part(rate.detach()).reshape(()).to(like, non_blocking=True)
        if isinstance(rate, Tensor)
        else like.new_full((), rate)
        for rate in rates
    ]
    return torch.stack(row)[on_device(groups, like.device, torch.long)]


PROBES: tuple[ProbeFactory, ...] = (lambda context: LayerNorms(NORMS_EVERY, context.layers),)
