"""Reads the second moments that optimizers of Adam's family keep beside their gradients.

In: an optimizer after its step. Out: for each parameter that has them, the gradient, the second moment, and what
corrects its bias. Promised: state is read and never made; what is not as torch's own optimizers keep it is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.dense_gradients import dense_gradients
from mlflow_stability.probes.device_numbers import on_device, widest
from mlflow_stability.probes.layers import HeldLayers

SMALLEST_EPSILON = 1e-30
"""Where an optimizer has none: a weight that never had a gradient is then 0 / 1e-30, and not 0 / 0."""


@dataclass(slots=True)
class SecondMoments:
    """The parameters of one optimizer that have a second moment; one entry for each in every list."""

    columns: list[int] = field(default_factory=list)
    """Which of the parameters that are measured."""
    gradients: list[Tensor] = field(default_factory=list)
    moments: list[Tensor] = field(default_factory=list)
    corrections: list[Tensor] = field(default_factory=list)
    """What the root of the second moment is multiplied by: 1 / sqrt(1 - beta2^t)."""
    epsilons: list[float] = field(default_factory=list)


def second_moments(optimizer: Optimizer, held: HeldLayers) -> SecondMoments | None:
    """The second moments of an optimizer; None where it has none."""
    found = SecondMoments()
    steps: list[Any] = []
    decays: list[float] = []
    parameters = held.parameters(optimizer)
    gradients, _ = dense_gradients(parameters)
    for column, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        state = optimizer.state.get(parameter)
        group = optimizer.param_groups[held.groups[column]]
        moment = None if gradient is None or not isinstance(state, dict) else _moment(state, group)
        if gradient is None or moment is None or not isinstance(state, dict) or moment.device != gradient.device:
            continue  # what was moved to the host is left there
        if moment.shape != gradient.shape:
            continue  # it belongs to a projection of the gradient, which only the optimizer knows
        step, decay, epsilon = state.get("step", group.get("step")), _decay(group), group.get("eps")
        if step is None or decay is None or not isinstance(epsilon, float | int):
            continue
        found.columns.append(column)
        found.gradients.append(gradient)
        found.moments.append(moment)
        found.epsilons.append(max(float(epsilon), SMALLEST_EPSILON))
        steps.append(step)
        decays.append(decay)
    if not found.columns:
        return None
    with torch.no_grad():
        device = found.moments[0].device
        decay_row = on_device(decays, device, widest(device))
        found.corrections = list((1.0 - decay_row.pow(_row(steps, decay_row))).rsqrt_().unbind())
    return found


def _moment(state: Mapping[str, Any], group: Mapping[str, Any]) -> Tensor | None:
    moment = state.get("max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq")
    plain = type(moment) is Tensor and moment.layout is torch.strided and moment.is_floating_point()
    return moment if plain else None


def _decay(group: Mapping[str, Any]) -> float | None:
    betas = group.get("betas")
    usual = isinstance(betas, tuple | list) and len(betas) == 2 and isinstance(betas[1], float)
    return betas[1] if usual and betas is not None else None


def _row(steps: list[Any], like: Tensor) -> Tensor:
    """How many steps were taken, for each parameter; torch keeps them as tensors, on the host or on the device."""
    if not any(isinstance(each, Tensor) for each in steps):
        return on_device(steps, like.device, like.dtype)
    row = [
        each.reshape(()) if isinstance(each, Tensor) else torch.tensor(float(each), dtype=torch.float32)
        for each in steps
    ]
    if len({each.device for each in row}) > 1:
        row = [each.to(like.device, non_blocking=True) for each in row]
    return torch.stack(row).to(like, non_blocking=True)
