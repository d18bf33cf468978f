"""Says why the operations of a model are not counted as they go by.

In: a model. Out: a reason, or nothing. Promised: what is counted is what the training does, in the way it does it:
where counting could change that, or would see only a part of it, there is no number.
"""

from __future__ import annotations

from torch.nn import Module
from torch.nn.parameter import is_lazy

from mlflow_stability.probes.compiled_parts import compiled
from mlflow_stability.probes.nesting import too_deep
from mlflow_stability.probes.roots import parameters_in

COMPILED = "a part of it is compiled, and compiled code does not say what it computes"
UNFIT = {
    "FullyShardedDataParallel": "its parameters are split over processes",
    "FSDPModule": "its parameters are split over processes",
    "DeepSpeedEngine": "its parameters may be split over processes",
    "DataParallel": "its batch is split over devices",
    "ScriptModule": "it was scripted",
}
"""Classes whose operations are not all to be seen from here."""


def refusal(root: Module) -> str:
    """Why the operations of this model are not counted; empty: nothing speaks against it."""
    for module in Module.modules(root):
        unfit = next((UNFIT[kind.__name__] for kind in type(module).__mro__ if kind.__name__ in UNFIT), None)
        if unfit is not None:
            return unfit
    how_much = compiled(root)
    if how_much != "no":
        return COMPILED.replace("a part of it", "it") if how_much == "whole" else COMPILED
    parameters = parameters_in(root)
    if any(map(is_lazy, parameters)):
        return "some of its parameters have no shape yet"
    if any(hasattr(each, mark) for each in parameters for mark in ("full_tensor", "_sharded_size", "ds_id")):
        return "its parameters are split over processes"
    if too_deep(root):
        return "its modules are nested almost as deeply as Python's recursion limit allows"
    return ""
