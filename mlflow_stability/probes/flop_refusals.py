"""Says why the operations of a model are not counted as they go by.

In: a model. Out: a reason, or nothing. Promised: what is counted is what the training does, in the way it does it:
where counting could change that, or would see only a part of it, there is no number.
"""

from __future__ import annotations

import sys
from typing import Any

from torch.nn import Module
from torch.nn.parameter import is_lazy

from mlflow_stability.probes.fragile_tensors import fragile_class
from mlflow_stability.probes.nesting import too_deep
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
    fragile = fragile_class()
    if fragile:
        return f"the class of tensors {fragile} cannot be made while operations are counted"
    if too_deep(root):
        return "its modules are nested almost as deeply as Python's recursion limit allows"
    return ""


def anything_compiled() -> bool:
    """Whether anything in this process was given to `torch.compile`, run or not: the model may call it.

    Torch counts the frames that it compiles, but not those of `fullgraph=True`; it remembers the backend of whatever
    it was given (None where it was told to keep its hands off), until `torch._dynamo.reset`; and the code of each
    function that it was given, for as long as that lives.
    """
    counted: Any = sys.modules.get("torch._dynamo.utils")
    if counted is not None and counted.counters["frames"]["total"]:
        return True
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    if frames is None:
        return False
    backends = getattr(frames, "cached_backends", {}).values()
    functions = getattr(getattr(frames, "always_optimize_code_objects", None), "values", None)
    return bool(functions) or any(each not in (None, False) for each in tuple(backends))
