"""Says with which optimizers a model is trained, and with which numbers.

In: optimizers, in the order in which they first stepped. Out: names and values, as they become parameters of the run:
``optimizer``, ``learning_rate``, ``betas``; of further groups what they have otherwise (``group_1.weight_decay``), of
further optimizers ``optimizer_1.learning_rate``. Promised: no number is fetched from a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.readback import Readback

MOST_OPTIMIZERS = 16
MOST_GROUPS = 16
"""A script that gives each parameter a group of its own says so by ``parameter_groups``."""
LONGEST = 8
"""A longer row of numbers is data, and no setting."""
_NAMES = {"lr": "learning_rate"}
# What the algorithm keeps in its groups for itself, and what schedulers remember there.
_NO_SETTINGS = frozenset({"params", "initial_lr", "param_names"})


def optimizer_facts(optimizers: Sequence[Optimizer]) -> dict[str, str]:
    """The classes and numbers of all optimizers."""
    facts: dict[str, str] = {}
    for number, optimizer in enumerate(optimizers[:MOST_OPTIMIZERS]):
        before = f"optimizer_{number}" if number else ""
        facts[before or "optimizer"] = type(optimizer).__name__
        facts |= {_joined(before, name): value for name, value in _numbers(optimizer).items()}
    return facts


def group_settings(group: Mapping[str, Any]) -> dict[str, str]:
    """The numbers and words of one parameter group; the learning rate is the one that a scheduler set out from."""
    settings = {}
    for key, value in group.items():
        if isinstance(key, str) and key not in _NO_SETTINGS:
            told = plain(group.get("initial_lr", value) if key == "lr" else value)
            if told is not None:
                settings[_NAMES.get(key, key)] = told
    return settings


def plain(value: Any) -> str | None:
    """A setting as text; None for what is none: a missing one, an object, a tensor on a device, a row of data."""
    if isinstance(value, bool | int | float | str):
        return str(value)
    if isinstance(value, Tensor):
        return plain(_read(value)) if value.is_cpu and value.numel() == 1 else None
    if isinstance(value, list | tuple) and 0 < len(value) <= LONGEST:
        words = [plain(each) for each in value]
        return None if None in words else f"({', '.join(filter(None, words))})"
    return None


def _numbers(optimizer: Optimizer) -> dict[str, str]:
    groups = optimizer.param_groups
    usual = group_settings(groups[0]) if groups else {}
    facts = dict(usual)
    if len(groups) > 1:
        facts["parameter_groups"] = str(len(groups))
    for number, group in enumerate(groups[1:MOST_GROUPS], 1):
        other = {name: value for name, value in group_settings(group).items() if usual.get(name) != value}
        facts |= {f"group_{number}.{name}": value for name, value in other.items()}
    return facts


def _read(value: Tensor) -> float:
    """The number in a tensor that lies on the CPU."""
    found: list[float] = []
    Readback().fetch([value], lambda values, _rows: found.extend(values))
    return found[0]


def _joined(before: str, name: str) -> str:
    return f"{before}.{name}" if before else name
