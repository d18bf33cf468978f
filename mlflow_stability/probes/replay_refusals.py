"""Says why a model had better not be run once more in the middle of its training.

In: a model and what it was called with. Out: a reason, or nothing. Promised: only what is known to be safe is let
through: what cannot be put back, or would wait for other processes, is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy

LARGEST_BUFFERS = 256 * 2**20
"""Buffers are cloned for a second run; this many bytes of them at most."""
UNFIT = {
    "SyncBatchNorm": "it exchanges batch statistics between processes",
    "FullyShardedDataParallel": "its parameters are split over processes",
    "FSDPModule": "its parameters are split over processes",
    "DeepSpeedEngine": "its parameters may be split over processes",
    "DataParallel": "its batch is split over devices",
    "ScriptModule": "it was scripted",
}
"""Classes whose forward pass involves more than one model on one device, and why they are left alone."""


def refusal(root: Module, inputs: Sequence[Tensor], versions: Sequence[int]) -> str:
    """Why this model should not be run on these inputs again; empty: nothing speaks against it."""
    if any(each.is_inference() for each in inputs) or [each._version for each in inputs] != list(versions):
        return "the script changed its inputs in place since"
    for module in root.modules():
        unfit = next((UNFIT[kind.__name__] for kind in type(module).__mro__ if kind.__name__ in UNFIT), None)
        if unfit is not None:
            return unfit
        if getattr(module, "max_norm", None) is not None:
            return "its embedding scales its own weights when it is used (max_norm)"
    parameters = list(root.parameters())
    if any(map(is_lazy, parameters)):
        return "some of its parameters have no shape yet"
    if any(hasattr(each, mark) for each in parameters for mark in ("full_tensor", "_sharded_size", "ds_id")):
        return "its parameters are split over processes"
    if sum(each.nbytes for each in root.buffers()) > LARGEST_BUFFERS:
        return f"its buffers are larger than {LARGEST_BUFFERS >> 20} MB"
    return ""
