"""Says why the operations of a model are not counted as they go by.

In: a model. Out: a reason, or nothing. Promised: what is counted is what the training does, in the way it does it:
where counting could change that, or would see only a part of it, there is no number.
"""

from __future__ import annotations

import sys
from typing import Any

from torch.nn import Module
from torch.nn.parameter import is_lazy

from mlflow_stability.probes.roots import parameters_in

UNFIT = {
    "FullyShardedDataParallel": "its parameters are split over processes",
    "FSDPModule": "its parameters are split over processes",
    "DeepSpeedEngine": "its parameters may be split over processes",
    "DataParallel": "its batch is split over devices",
    "ScriptModule": "it was scripted",
    "OptimizedModule": "it is compiled, and compiled code does not say what it computes",
}
"""Classes whose operations are not all to be seen from here."""


def refusal(root: Module) -> str:
    """Why the operations of this model are not counted; empty: nothing speaks against it."""
    for module in Module.modules(root):
        unfit = next((UNFIT[kind.__name__] for kind in type(module).__mro__ if kind.__name__ in UNFIT), None)
        if unfit is not None:
            return unfit
    if anything_compiled():
        return "a part of it is compiled, and compiled code does not say what it computes"
    parameters = parameters_in(root)
    if any(map(is_lazy, parameters)):
        return "some of its parameters have no shape yet"
    if any(hasattr(each, mark) for each in parameters for mark in ("full_tensor", "_sharded_size", "ds_id")):
        return "its parameters are split over processes"
    return ""


def anything_compiled() -> bool:
    """Whether `torch.compile` has compiled anything in this process: it may be called by the model."""
    counted: Any = sys.modules.get("torch._dynamo.utils")
    return counted is not None and bool(counted.counters["frames"]["total"])
