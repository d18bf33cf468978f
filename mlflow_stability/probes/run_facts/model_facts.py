"""Says which model is trained: its class, its parameters, their types and devices.

In: models as they were found, and the optimizers. Out: names and values, as they become parameters of the run:
``model``, ``model.compiled``, ``parameters_total``, ``parameters_trainable``; of further models
``model_1.parameters_total``. Guarantees: one walk over the parameters, and no look into any of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.forward.compiled_models import compiled
from mlflow_stability.probes.objects.module_names import WRAPPERS
from mlflow_stability.probes.tensors.gradient_norm import parameters_of

MOST_MODELS = 16


def model_facts(models: Sequence[Module], optimizers: Sequence[Optimizer]) -> dict[str, str]:
    """All models; where no module owns the parameters, what the optimizers know of them."""
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
        facts |= _counts(each for optimizer in optimizers for each in parameters_of(optimizer))
    return facts


def _unwrapped(model: Module) -> tuple[list[str], Module]:
    """What was wrapped around a model, from the outside in, and the model itself."""
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
    for each in parameters:
        size = each.numel()
        total += size
        trainable += size if each.requires_grad else 0
        dtypes[each.dtype] += size
        devices[each.device] = None
    return {
        "parameters_total": str(total),
        "parameters_trainable": str(trainable),
        "parameter_types": _shares(dtypes, total),
        "devices": ", ".join(map(str, devices)),
    }


def _shares(sizes: Counter[torch.dtype], total: int) -> str:
    """`float32`, or `bfloat16 98 %, float32 2 %`."""
    names = [(str(dtype).removeprefix("torch."), size) for dtype, size in sizes.most_common()]
    if len(names) < 2:
        return "".join(name for name, _ in names)
    return ", ".join(f"{name} {100 * size / max(total, 1):.3g} %" for name, size in names)
