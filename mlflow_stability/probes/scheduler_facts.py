"""Says how the learning rate is scheduled.

In: the schedulers that were found, and the optimizers that train. Out: names and values, as they become parameters of
the run: ``scheduler``, ``scheduler.T_max``; of one made of others ``scheduler.0.start_factor``. Promised: only what a
schedule is made from, and nothing that changes while it runs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mlflow_stability.probes.optimizer_facts import plain
from mlflow_stability.probes.schedules import parts_of_schedule, schedules_of

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
