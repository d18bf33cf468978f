"""Settings that a run recorded, as far as they exclude a cause or make a remedy pointless.

None where the run does not record it. A setting that was changed during the run excludes nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mlflow_stability.kinds.reported.broken_steps import NanOriginFacts
from mlflow_stability.kinds.reported.setup import ConfigurationFacts, Setting
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import RunHistory

WEIGHT_DECAY = frozenset({"weight_decay", "wd"})
MAX_NORM = frozenset({"max_norm", "max_grad_norm", "gradient_clip_val", "grad_clip", "clip_grad_norm", "clip_grad"})
MOMENTUM = re.compile(r"(?:stability\.)?(?:(?:optim\w*|opt|sgd)(?:_\d+)?[./])?(?:group_\d+[./])?momentum")
"""Momentum of an optimizer: `ema.momentum` and `bn.momentum` are others."""
OPTIMIZER = frozenset({"optimizer", "optimizer_name", "optimizer_type", "optim", "opt"})
ADAM = re.compile(r"adam|lamb", re.IGNORECASE)  # optimizers that divide by a running average of squared gradients
NOT_ADAM = re.compile(r"^(?:sgd|asgd|rmsprop|adagrad|adadelta|rprop|lbfgs|lion|muon)\b", re.IGNORECASE)
BETAS = re.compile(r"[\[(]\s*(?P<first>\d*\.?\d+(?:e-?\d+)?)\s*,\s*(?P<second>\d*\.?\d+(?:e-?\d+)?)\s*[\])]$")
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
"""The usual learning rate of an optimizer, by its name; the first match."""
FP16 = re.compile(r"(?<![a-z])(?:fp16|float16|half|16-mixed|16-true)\b")
OTHER_TYPES = re.compile(r"^(?:no|(?:32|64|bf16)(?:-true|-mixed)?|(?:torch\.)?(?:fp32|float32|tf32|bfloat16|float64))$")
RECORDED_TYPES = ("stability.autocast", "stability.parameter_types")
"""Parameters of our own recordings; the second is always there."""
TYPE_PARAMETERS = ("precision", "mixed_precision", "dtype", "torch_dtype", "amp_dtype")
"""Parameters of frameworks and scripts, without what is before the last dot or slash."""


@dataclass(frozen=True, slots=True)
class RecordedSettings:
    half_precision: bool | None
    weight_decay: float | None  # the highest of all parameter groups
    max_norm: float | None  # the norm that gradients are clipped to
    adam: bool | None  # whether any of its optimizers is of the Adam family
    sgd: bool = False  # whether all of its optimizers are known to be SGD
    betas: tuple[tuple[float, float], ...] | None = ()
    """Of all parameter groups, each pair once; empty: not recorded; None: they were changed while it trained."""
    momentum: float | None = None  # the highest of all parameter groups; None: not recorded, or it was changed
    schedule: str = ""
    """The learning-rate schedule with its length, ``CosineAnnealingLR, T_max=150``; empty: not recorded, or several."""


def settings_of(history: RunHistory) -> RecordedSettings:
    decays = _numbers(history.params, WEIGHT_DECAY)
    norms = [norm for norm in _numbers(history.params, MAX_NORM) if norm > 0]
    own = {key: value for key, value in history.params.items() if MOMENTUM.fullmatch(key.lower())}
    momenta = [momentum for momentum in _numbers(own, frozenset({"momentum"})) if 0 <= momentum < 1]
    changes = history.events or ()
    decay_changed = any(is_of_option(event, "weight_decay") for event in changes)
    clipping_changed = any(is_of_setting(event, Setting.CLIPPING_NORM) for event in changes)
    betas_changed = any(is_of_option(event, "betas") for event in changes)
    matches = [BETAS.match(value.strip()) for key, value in history.params.items() if _last_part(key) == "betas"]
    pairs = [(float(match["first"]), float(match["second"])) for match in matches if match is not None]
    return RecordedSettings(
        in_half_precision(history),
        None if not decays or decay_changed else max(decays),
        None if not norms or clipping_changed else min(norms),
        is_adam(history),
        is_sgd(history),
        None if betas_changed else tuple(dict.fromkeys(pair for pair in pairs if max(pair) < 1)),
        None if not momenta or any(is_of_option(event, "momentum") for event in changes) else max(momenta),
        _schedule(history.params),
    )


def is_of_setting(event: Finding, setting: Setting) -> bool:
    return isinstance(event.facts, ConfigurationFacts) and event.facts.name.setting is setting


def is_of_option(event: Finding, option: str) -> bool:
    """Whether an event reports that this option of a parameter group changed."""
    return isinstance(event.facts, ConfigurationFacts) and event.facts.name.option == option


def _last_part(key: str) -> str:
    """Return the name without its prefix: `optimizer.betas` is `betas`."""
    return re.split(r"[./]", key)[-1]


def _numbers(params: Mapping[str, str], names: frozenset[str]) -> list[float]:
    numbers = []
    for key, value in params.items():
        if _last_part(key.lower()) in names:
            try:
                numbers.append(float(value))
            except ValueError:
                continue
    return [number for number in numbers if math.isfinite(number)]


def _schedule(params: Mapping[str, str]) -> str:
    names = {key: value for key, value in params.items() if re.search(r"(?:^|[./])scheduler(?:_\d+)?$", key)}
    if len(names) != 1:
        return ""
    ((key, name),) = names.items()
    lengths = [f"{length}={params[f'{key}.{length}']}" for length in SCHEDULE_LENGTHS if f"{key}.{length}" in params]
    return ", ".join([name, *lengths])


def optimizers_of(history: RunHistory) -> list[str]:
    names = {key: _last_part(key.lower()) for key in history.params}
    return [
        value
        for key, value in history.params.items()
        if names[key] in OPTIMIZER or re.fullmatch(r"optimizer_\d+", names[key])
    ]


def default_rate(history: RunHistory) -> tuple[str, float] | None:
    """Return the optimizer with the highest default learning rate, and that rate; None: no known optimizer."""
    rates = [
        (name, next((rate for pattern, rate in DEFAULT_RATES if pattern.search(name)), None))
        for name in optimizers_of(history)
    ]
    return max([(name, rate) for name, rate in rates if rate is not None], key=lambda pair: pair[1], default=None)


def is_sgd(history: RunHistory) -> bool:
    names = optimizers_of(history)
    return bool(names) and all(name.lower() == "sgd" for name in names)


def may_follow_scale(history: RunHistory) -> bool:
    """Whether steps may be as large as the gradients: SGD, or an optimizer that is not named and is not Adam."""
    return is_sgd(history) if optimizers_of(history) else not is_adam(history)


def is_adam(history: RunHistory) -> bool | None:
    """Whether any optimizer is of the Adam family; None: not known."""
    names = optimizers_of(history)
    if any(map(ADAM.search, names)):
        return True
    if names:
        return False if all(map(NOT_ADAM.search, names)) else None
    words = (*history.params.items(), *history.tags.items())  # some name it in the name of a run or of a file
    return True if any("adam" in f"{key} {value}".lower() for key, value in words) else None


def in_half_precision(history: RunHistory) -> bool | None:
    """Whether anything was computed in fp16, whose largest number is 65504; None: not known. bf16 is not fp16."""
    params = {key.lower(): value.lower() for key, value in history.params.items()}
    asked = [_asks_for_fp16(key, value) for key, value in params.items()]
    scales = [np.asarray(metric.series.values, np.float64) for metric in history.of("loss_scale")]
    if (
        True in asked
        or any(FP16.search(params.get(key, "")) for key in RECORDED_TYPES)
        or any(bool((scale[np.isfinite(scale)] > 1.0).any()) for scale in scales)
        or any(
            (
                isinstance(event.facts, NanOriginFacts)
                and any(
                    tensor.dtype == "float16"
                    for tensor in (*event.facts.inputs, event.facts.output)
                    if tensor is not None
                )
            )
            for event in history.events or ()
        )
    ):
        return True
    return False if RECORDED_TYPES[1] in params or False in asked else None


def _asks_for_fp16(key: str, value: str) -> bool | None:
    """Whether a parameter asks for fp16; None where it asks for no type."""
    name = _last_part(key)
    if name in ("fp16", "use_fp16"):
        return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(value)
    if name not in TYPE_PARAMETERS:
        return None
    if FP16.search(value) or value == "16":
        return True
    return False if OTHER_TYPES.search(value) else None
