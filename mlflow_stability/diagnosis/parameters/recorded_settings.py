"""Reads from what a run recorded of its settings which causes they exclude, and which remedies they make pointless.

In: a run. Out: the weight decay, the clipping, the family of the optimizer and its betas, whether it computes in fp16;
None where the run does not say. Guarantees: a setting that was changed in mid-run excludes nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from mlflow_stability.diagnosis.parameters.half_precision import in_half_precision
from mlflow_stability.kinds.reported.setup import ConfigurationFacts, Setting
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import RunHistory

WEIGHT_DECAY = frozenset({"weight_decay", "wd"})
MAX_NORM = frozenset({"max_norm", "max_grad_norm", "gradient_clip_val", "grad_clip", "clip_grad_norm", "clip_grad"})
OPTIMIZER = frozenset({"optimizer", "optimizer_name", "optimizer_type", "optim", "opt"})
ADAM = re.compile(r"adam|lamb", re.IGNORECASE)
"""Optimizers that divide by what they remember of the size of gradients."""
BETAS = re.compile(r"[\[(]\s*(?P<first>\d*\.?\d+(?:e-?\d+)?)\s*,\s*(?P<second>\d*\.?\d+(?:e-?\d+)?)\s*[\])]$")
OTHERS = re.compile(r"^(?:sgd|asgd|rmsprop|adagrad|adadelta|rprop|lbfgs|lion|muon)\b", re.IGNORECASE)
SCHEDULE_LENGTHS = ("T_max", "total_iters", "total_steps", "milestones")
"""What the schedules of torch call their length."""
DEFAULT_RATES: tuple[tuple[re.Pattern[str], float], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), rate)
    for pattern, rate in (
        ("dadapt|prodigy|adadelta|lbfgs", 1.0),
        ("muon", 2e-2),
        ("rprop|adafactor|adagrad|rmsprop|asgd|^sgd$", 1e-2),
        ("lion", 1e-4),
        ("adam|lamb", 1e-3),
    )
)
"""The learning rate that an optimizer is used with where nobody chooses another one, by its name; the first match."""


@dataclass(frozen=True, slots=True)
class RecordedSettings:
    """What is known of the settings of one run."""

    half_precision: bool | None
    weight_decay: float | None
    """The highest of all parameter groups."""
    max_norm: float | None
    """The norm that gradients are clipped to."""
    adam: bool | None
    """Whether any of its optimizers is of the Adam family."""
    sgd: bool = False
    """Whether all of its optimizers are known to be SGD."""
    betas: tuple[tuple[float, float], ...] | None = ()
    """Of all parameter groups, each pair once; empty: not recorded; None: they were changed while it trained."""
    schedule: str = ""
    """The learning-rate schedule with its length, ``CosineAnnealingLR, T_max=150``; empty: not recorded, or several."""


def settings_of(history: RunHistory) -> RecordedSettings:
    """The recorded settings."""
    decays = _numbers(history.params, WEIGHT_DECAY)
    norms = [each for each in _numbers(history.params, MAX_NORM) if each > 0]
    changes = history.events or ()
    decay_changed = any(is_of_option(each, "weight_decay") for each in changes)
    clipping_changed = any(is_of_setting(each, Setting.CLIPPING_NORM) for each in changes)
    betas_changed = any(is_of_option(each, "betas") for each in changes)
    return RecordedSettings(
        in_half_precision(history),
        None if not decays or decay_changed else max(decays),
        None if not norms or clipping_changed else min(norms),
        is_adam(history),
        is_sgd(history),
        None if betas_changed else _betas(history.params),
        _schedule(history.params),
    )


def is_of_setting(event: Finding, setting: Setting) -> bool:
    """Whether an event says that this setting changed."""
    return isinstance(event.facts, ConfigurationFacts) and event.facts.name.setting is setting


def is_of_option(event: Finding, option: str) -> bool:
    """Whether an event says that this option of a parameter group changed."""
    return isinstance(event.facts, ConfigurationFacts) and event.facts.name.option == option


def _numbers(params: Mapping[str, str], names: frozenset[str]) -> list[float]:
    found = []
    for key, value in params.items():
        if re.split(r"[./]", key.lower())[-1] in names:
            try:
                number = float(value)
            except ValueError:
                continue
            if math.isfinite(number):
                found.append(number)
    return found


def _betas(params: Mapping[str, str]) -> tuple[tuple[float, float], ...]:
    """What was recorded as ``(0.9, 0.999)``, of any group; what is no pair of numbers below 1 is none."""
    pairs = [BETAS.match(value.strip()) for key, value in params.items() if re.split(r"[./]", key)[-1] == "betas"]
    found = [(float(each["first"]), float(each["second"])) for each in pairs if each is not None]
    return tuple(dict.fromkeys(each for each in found if max(each) < 1))


def _schedule(params: Mapping[str, str]) -> str:
    names = {key: value for key, value in params.items() if re.search(r"(?:^|[./])scheduler(?:_\d+)?$", key)}
    if len(names) != 1:
        return ""
    ((key, name),) = names.items()
    lengths = [f"{length}={params[f'{key}.{length}']}" for length in SCHEDULE_LENGTHS if f"{key}.{length}" in params]
    return ", ".join([name, *lengths])


def optimizers_of(history: RunHistory) -> list[str]:
    """The optimizers that the run's parameters name."""
    return [value for key, value in history.params.items() if _names_an_optimizer(key)]


def default_rate(history: RunHistory) -> tuple[str, float] | None:
    """The optimizer with the highest default learning rate, and that rate; None: the run names no known optimizer."""
    found = [(name, _default_of(name)) for name in optimizers_of(history)]
    known = [(name, rate) for name, rate in found if rate is not None]
    return max(known, key=lambda each: each[1], default=None)


def _default_of(name: str) -> float | None:
    return next((rate for pattern, rate in DEFAULT_RATES if pattern.search(name)), None)


def is_sgd(history: RunHistory) -> bool:
    """Whether all optimizers are known to be SGD, with or without momentum."""
    said = optimizers_of(history)
    return bool(said) and all(each.lower() == "sgd" for each in said)


def is_adam(history: RunHistory) -> bool | None:
    """Whether any optimizer is of the Adam family; None: the run does not say."""
    said = optimizers_of(history)
    if any(map(ADAM.search, said)):
        return True
    if said:
        return False if all(map(OTHERS.search, said)) else None
    words = (*history.params.items(), *history.tags.items())  # some name it in the name of a run or of a file
    return True if any("adam" in f"{key} {value}".lower() for key, value in words) else None


def _names_an_optimizer(key: str) -> bool:
    last = re.split(r"[./]", key.lower())[-1]
    return last in OPTIMIZER or re.fullmatch(r"optimizer_\d+", last) is not None
