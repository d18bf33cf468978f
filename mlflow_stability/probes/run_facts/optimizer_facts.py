"""Parameters of the run that describe optimizers and learning rate schedules.

In: optimizers in the order of their first steps, and their schedulers. Out: names and values: ``optimizer``,
``learning_rate``, ``group_1.weight_decay`` (where a group differs), ``optimizer_1.learning_rate``, ``scheduler``,
``scheduler.T_max``, ``scheduler.0.start_factor``. Guarantees: no number is fetched from a device; of schedules only
what they are made from.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mlflow_stability.probes.objects.model_discovery import parts_of_schedule, schedules_of
from mlflow_stability.probes.step.readback import Readback

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


_DEEPEST = 3
_RUNNING = frozenset(
    {"last_epoch", "base_lrs", "best", "num_bad_epochs", "cooldown_counter", "T_cur", "T_i", "verbose", "mode_worse"}
)


def scheduler_facts(schedulers: Iterable[LRScheduler], optimizers: Sequence[Optimizer]) -> dict[str, str]:
    """The schedulers of these optimizers, as they are nested."""
    facts: dict[str, str] = {}
    for number, optimizer in enumerate(optimizers):
        before = f"optimizer_{number}." if number else ""
        for place, each in enumerate(schedules_of(schedulers, [optimizer])):
            key = f"{before}scheduler_{place}" if place else f"{before}scheduler"
            facts[key] = _title(each)
            facts |= _settings(each, key, _DEEPEST)
    return facts


def _title(scheduler: LRScheduler) -> str:
    """`SequentialLR(LinearLR, CosineAnnealingLR)`."""
    name = type(scheduler).__name__
    parts = ", ".join(type(each).__name__ for each in parts_of_schedule(scheduler))
    return f"{name}({parts})" if parts else name


def _settings(scheduler: LRScheduler, key: str, deep: int) -> dict[str, str]:
    facts = {}
    for name, value in vars(scheduler).items():
        if not name.startswith("_") and name not in _RUNNING:
            told = _functions(value) if name == "lr_lambdas" else plain(value)
            if told is not None:
                facts[f"{key}.{name}"] = told
    milestones = plain(vars(scheduler).get("_milestones"))
    if milestones is not None:
        facts[f"{key}.milestones"] = milestones
    if deep:
        for number, child in enumerate(parts_of_schedule(scheduler)):
            facts |= _settings(child, f"{key}.{number}", deep - 1)
    return facts


def _functions(functions: Any) -> str | None:
    """The functions that a `LambdaLR` multiplies by, each once, with what they were given."""
    said = [_function(each) for each in functions] if isinstance(functions, list) else []
    return ", ".join(dict.fromkeys(filter(None, said))) or None


def _function(function: Any) -> str | None:
    given = ""
    if isinstance(function, functools.partial):  # as the schedules of transformers are
        known = {name: plain(value) for name, value in function.keywords.items()}
        given = ", ".join(f"{name}={value}" for name, value in known.items() if value is not None)
        function = function.func
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{name}({given})" if given else str(name)
