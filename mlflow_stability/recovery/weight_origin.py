"""Tells who wrote a number that is not finite into a weight: the optimizer, or somebody else.

In: a weight that is broken, and the optimizers. Out: a birth. Promised: nothing of an optimizer is changed; what it
would do next is tried on copies, and of torch's own optimizers only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.recovery.batch_facts import facts_of_tensor
from mlflow_stability.recovery.nan_birth import Birth
from mlflow_stability.recovery.nan_trace import is_finite

MOST_BYTES = 64 * 2**20
"""What an optimizer would do to a larger weight is not tried."""


def weight_birth(
    name: str, stand_in: Tensor, optimizers: Sequence[Optimizer], parameter: Tensor | None = None
) -> Birth:
    """Why this weight is not finite; `parameter` is the one that the optimizers know."""
    module, _, own = name.rpartition(".")
    facts = facts_of_tensor(name, stand_in)
    broken = Birth("weight", module, own, name=name, output=facts)
    for optimizer in optimizers:
        group = _group_of(optimizer, parameter)
        if parameter is None or group is None:
            continue
        kind = type(optimizer).__name__
        for key, value in _numbers(optimizer.state.get(parameter, {})):
            if not is_finite(value):
                return Birth("optimizer", module, kind, name=key, inputs=(facts_of_tensor(key, value),), output=facts)
        rate = torch.as_tensor(group.get("lr", 0.0), dtype=torch.float64)
        if not is_finite(rate.double()):
            return Birth(
                "optimizer", module, kind, name="lr", inputs=(facts_of_tensor("lr", rate.double()),), output=facts
            )
        if _would_break(optimizer, group, parameter):
            return Birth("optimizer", module, kind, name="update", output=facts)
    return broken


def _would_break(optimizer: Optimizer, group: dict[str, Any], parameter: Tensor) -> bool:
    """Whether a step from zero with a gradient of zero, from the state as it is, breaks numbers that are broken now."""
    kind = type(optimizer)
    step = getattr(kind.step, "__wrapped__", None)  # without the hooks that a step has, ours among them
    if step is None or not kind.__module__.startswith("torch.optim.") or kind.__name__ == "LBFGS":
        return False
    if parameter.nbytes > MOST_BYTES:
        return False
    known = optimizer.state.get(parameter, {})  # not by subscript, which would make an entry
    trial = torch.zeros_like(parameter, requires_grad=True)
    trial.grad = torch.zeros_like(parameter)
    copy = kind.__new__(kind)
    state = {key: value.clone() if isinstance(value, Tensor) else value for key, value in known.items()}
    copy.__dict__.update(optimizer.__dict__)
    copy.state = type(optimizer.state)(dict, {trial: state})
    copy.param_groups = [{**group, "params": [trial], "foreach": False, "fused": False}]
    step(copy)
    return bool((~trial.detach().isfinite() & ~parameter.detach().isfinite()).any())


def _group_of(optimizer: Optimizer, parameter: Tensor | None) -> dict[str, Any] | None:
    for group in optimizer.param_groups:
        if any(each is parameter for each in group["params"]):
            return dict(group)
    return None


def _numbers(state: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for key, value in state.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            yield key, value
