"""Parameters of the run that describe models, optimizers, learning rate schedules and torch.

Further ones have numbers: ``model_1.parameters_total``, ``optimizer_1.learning_rate``; a group that differs has
``group_1.weight_decay``. Guarantees: one walk over the parameters; no value is fetched from a device, and no device is
started or waited for; no random number is drawn, and nothing is switched.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mlflow_stability.probes.forward.compiled_models import compiled
from mlflow_stability.probes.gradient_norm import parameters_of
from mlflow_stability.probes.model_discovery import WRAPPERS, parts_of_schedule, schedules_of
from mlflow_stability.probes.step.readback import Readback

MOST_MODELS = 16


def model_facts(models: Sequence[Module], optimizers: Sequence[Optimizer]) -> dict[str, str]:
    """Describe all models; if no module owns the parameters, describe those of the optimizers."""
    facts: dict[str, str] = {}
    for number, model in enumerate(models[:MOST_MODELS]):
        before = f"model_{number}" if number else ""
        wrappers, inner = _unwrapped(model)
        facts[before or "model"] = type(inner).__name__
        facts[f"{before or 'model'}.compiled"] = compiled(model)
        if wrappers:
            facts[f"{before}.wrapped_by" if before else "wrapped_by"] = ", ".join(wrappers)
        facts |= {
            f"{before}.{key}" if before else key: value for key, value in _counts(Module.parameters(model)).items()
        }
    if not models:
        facts |= _counts(parameter for optimizer in optimizers for parameter in parameters_of(optimizer))
    return facts


def _unwrapped(model: Module) -> tuple[list[str], Module]:
    wrappers = []
    while len(model._modules) == 1:
        ((name, inner),) = model._modules.items()
        if name not in WRAPPERS or inner is None:
            break
        wrappers.append(type(model).__name__)
        model = inner
    if getattr(model, "_compiled_call_impl", None) is not None:  # compiled in place, without a wrapper
        wrappers.append("compile")
    return wrappers, model


def _counts(parameters: Iterable[Tensor]) -> dict[str, str]:
    total = trainable = 0
    dtypes: Counter[torch.dtype] = Counter()
    devices: dict[torch.device, None] = {}
    for parameter in parameters:
        size = parameter.numel()
        total += size
        trainable += size if parameter.requires_grad else 0
        dtypes[parameter.dtype] += size
        devices[parameter.device] = None
    return {
        "parameters_total": str(total),
        "parameters_trainable": str(trainable),
        "parameter_types": _shares(dtypes, total),
        "devices": ", ".join(map(str, devices)),
    }


def _shares(sizes: Counter[torch.dtype], total: int) -> str:
    names = [(str(dtype).removeprefix("torch."), size) for dtype, size in sizes.most_common()]
    if len(names) < 2:
        return "".join(name for name, _ in names)
    return ", ".join(f"{name} {100 * size / max(total, 1):.3g} %" for name, size in names)


MOST_OPTIMIZERS = 16
MOST_GROUPS = 16  # a script that gives each parameter a group of its own says so by ``parameter_groups``
LONGEST = 8  # a longer row of numbers is data, and no setting
_NAMES = {"lr": "learning_rate"}
# What the algorithm keeps in its groups for itself, and what schedulers remember there.
_NO_SETTINGS = frozenset({"params", "initial_lr", "param_names"})


def optimizer_facts(optimizers: Sequence[Optimizer]) -> dict[str, str]:
    facts: dict[str, str] = {}
    for number, optimizer in enumerate(optimizers[:MOST_OPTIMIZERS]):
        before = f"optimizer_{number}" if number else ""
        facts[before or "optimizer"] = type(optimizer).__name__
        facts |= {(f"{before}.{name}" if before else name): value for name, value in _numbers(optimizer).items()}
    return facts


def group_settings(group: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of one parameter group; the learning rate is the one that a schedule began with."""
    settings = {}
    for key, value in group.items():
        if isinstance(key, str) and key not in _NO_SETTINGS:
            text = plain(group.get("initial_lr", value) if key == "lr" else value)
            if text is not None:
                settings[_NAMES.get(key, key)] = text
    return settings


def plain(value: Any) -> str | None:
    """Return a setting as text, or None if it is an object, a tensor on a device, or a row of data."""
    if isinstance(value, bool | int | float | str):
        return str(value)
    if isinstance(value, Tensor):
        return plain(_read(value)) if value.is_cpu and value.numel() == 1 else None
    if isinstance(value, list | tuple) and 0 < len(value) <= LONGEST:
        words = [plain(item) for item in value]
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
    numbers: list[float] = []
    Readback().fetch([value], lambda values, _rows: numbers.extend(values))
    return numbers[0]


_DEEPEST = 3
_RUNNING = frozenset(
    {"last_epoch", "base_lrs", "best", "num_bad_epochs", "cooldown_counter", "T_cur", "T_i", "verbose", "mode_worse"}
)


def scheduler_facts(schedulers: Iterable[LRScheduler], optimizers: Sequence[Optimizer]) -> dict[str, str]:
    facts: dict[str, str] = {}
    for number, optimizer in enumerate(optimizers):
        before = f"optimizer_{number}." if number else ""
        for place, schedule in enumerate(schedules_of(schedulers, [optimizer])):
            key = f"{before}scheduler_{place}" if place else f"{before}scheduler"
            name = type(schedule).__name__
            parts = ", ".join(type(part).__name__ for part in parts_of_schedule(schedule))
            facts[key] = f"{name}({parts})" if parts else name
            facts |= _settings(schedule, key, _DEEPEST)
    return facts


def _settings(scheduler: LRScheduler, key: str, deep: int) -> dict[str, str]:
    facts = {}
    for name, value in vars(scheduler).items():
        if not name.startswith("_") and name not in _RUNNING:
            text = _functions(value) if name == "lr_lambdas" else plain(value)
            if text is not None:
                facts[f"{key}.{name}"] = text
    milestones = plain(vars(scheduler).get("_milestones"))
    if milestones is not None:
        facts[f"{key}.milestones"] = milestones
    if deep:
        for number, child in enumerate(parts_of_schedule(scheduler)):
            facts |= _settings(child, f"{key}.{number}", deep - 1)
    return facts


def _functions(functions: Any) -> str | None:
    texts = [_function(function) for function in functions] if isinstance(functions, list) else []
    return ", ".join(dict.fromkeys(filter(None, texts))) or None


def _function(function: Any) -> str | None:
    given = ""
    if isinstance(function, functools.partial):  # as the schedules of transformers are
        settings = {name: plain(value) for name, value in function.keywords.items()}
        given = ", ".join(f"{name}={value}" for name, value in settings.items() if value is not None)
        function = function.func
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{name}({given})" if given else str(name)


_PROCESSORS = Path("/proc/cpuinfo")
_FIRST_CHARACTERS = 4096  # contain the first processor of a list that is long on large machines


def torch_facts() -> dict[str, str]:
    facts = {
        "torch": str(torch.__version__),
        "device_name": device_names(),
        "threads": str(torch.get_num_threads()),
        "seed": str(torch.initial_seed()),
        "deterministic_algorithms": _deterministic(),
        "float32_matmul": _matmul_precision(),
    }
    if torch.version.cuda:
        facts["cuda"] = str(torch.version.cuda)
    if getattr(torch.version, "hip", None):
        facts["hip"] = str(torch.version.hip)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        facts["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        facts["cudnn_benchmark"] = str(torch.backends.cudnn.benchmark)
        facts["cudnn_deterministic"] = str(torch.backends.cudnn.deterministic)
    return facts


def scaler_facts(scaler: Any) -> dict[str, str]:
    """Describe a loss scaler; its present scale is on the device and is a series of its own."""
    if scaler is None:
        return {}
    return {
        "loss_scaling": type(scaler).__name__,
        "loss_scaling.initial_scale": str(getattr(scaler, "_init_scale", "")),
        "loss_scaling.growth_factor": str(scaler.get_growth_factor()),
        "loss_scaling.backoff_factor": str(scaler.get_backoff_factor()),
        "loss_scaling.growth_interval": str(scaler.get_growth_interval()),
    }


def autocast_now() -> str:
    """Return the present type of autocast, such as ``cuda bfloat16``; empty if it is off."""
    types = [
        f"{device} {str(torch.get_autocast_dtype(device)).removeprefix('torch.')}"
        for device in ("cuda", "cpu")
        if torch.is_autocast_enabled(device)
    ]
    return ", ".join(types)


def device_names() -> str:
    """Return `NVIDIA H100 80GB HBM3`, or `4 x NVIDIA L4`; if no accelerator is used, the processor."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        names = Counter(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
        return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in names.items())
    try:
        with _PROCESSORS.open(encoding="utf-8", errors="replace") as file:
            lines = file.read(_FIRST_CHARACTERS).splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _deterministic() -> str:
    if not torch.are_deterministic_algorithms_enabled():
        return "False"
    return "warn only" if torch.is_deterministic_algorithms_warn_only_enabled() else "True"


def _matmul_precision() -> str:
    """In which precision products of float32 matrices are computed on a GPU.

    Torch has two ways to say it since 2.9, and where a script uses the newer one, asking the older one raises:
    https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
    """
    newer = getattr(torch.backends.cuda.matmul, "fp32_precision", "none")
    if newer != "none":
        return str(newer)
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return ""
