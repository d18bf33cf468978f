"""The L2 norm of all gradients in few kernels, and which gradients are complete in this process.

The norm of a model split over processes is in `probes/ranks/sharded_norms.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter, is_not

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.tensor_sums import HALVES, LARGE, norms_of

_PLAIN = (Tensor, Parameter)
# Called at every step for hundreds of parameters, so they are functions in C.
_gradient, _is_there = attrgetter("grad"), partial(is_not, None)
# Attributes of a flat parameter of FSDP1, and of the script's own parameters in it (``use_orig_params``).
_MARKS_OF_FSDP = ("_sharded_size", "_fsdp_flattened")


def parameters_of(owner: Optimizer | Module) -> list[Tensor]:
    if isinstance(owner, Module):
        return list(Module.parameters(owner))
    return [parameter for group in owner.param_groups for parameter in group["params"]]


def gradients_of(optimizer: Optimizer) -> list[Tensor]:
    gradients: list[Tensor] = []
    for group in optimizer.param_groups:
        gradients += filter(_is_there, map(_gradient, group["params"]))
    return gradients


def is_of_one_rank(parameter: Tensor) -> bool:
    """Whether a parameter is marked as a different one on each rank, as experts are.

    DDP marks those that it ignores; Megatron and DeepSpeed set ``parameter.allreduce = False``.
    """
    return getattr(parameter, "_ddp_ignored", False) is True or getattr(parameter, "allreduce", None) is False


def is_split(parameter: Tensor) -> bool:
    """Whether a parameter is split over processes: by FSDP1 or FSDP2, as a `DTensor`, or by experts."""
    if hasattr(parameter, "full_tensor"):
        return True
    if is_of_one_rank(parameter):
        return world_size() > 1
    for mark in _MARKS_OF_FSDP:
        if hasattr(parameter, mark):
            return world_size() > 1
    return False


def local_part(tensor: Tensor) -> Tensor:
    """Return what this process holds of a `DTensor`; any other tensor as it is."""
    local = getattr(tensor, "_local_tensor", None)
    if local is None and hasattr(tensor, "to_local"):
        with torch.no_grad():
            local = tensor.to_local()
    return tensor if local is None else local


def rank_and_world_size() -> tuple[int, int]:
    """Return this process's place in `torch.distributed`; (0, 1) without it."""
    group = torch.distributed
    there = group.is_available() and group.is_initialized()
    return (group.get_rank(), group.get_world_size()) if there else (0, 1)


def world_size() -> int:
    return rank_and_world_size()[1]


def whole_gradients_of(optimizer: Optimizer) -> list[Tensor]:
    """Return the gradients that this optimizer is about to use; none if the first parameter is split."""
    whole: list[Tensor] = []
    for group in optimizer.param_groups:
        gradients = filter(_is_there, map(_gradient, group["params"]))
        if not whole:
            whole = list(gradients)
            first = group["params"][0] if whole else None
            if first is not None and first.grad is None:
                first = next(parameter for parameter in group["params"] if parameter.grad is not None)
            # A plain parameter without attributes has no mark.
            if first is not None and (type(first) is not Parameter or first.__dict__) and is_split(first):
                return []
        else:
            whole += gradients
    return whole


def total_norm(gradients: Sequence[Tensor]) -> Tensor | None:
    """Return the norm of all as a scalar on the device; None if there are none, or only parts of them.

    Half precision is summed in single: a norm of 70,000 exceeds float16 without an overflow of the training.
    """
    if not gradients or gradients[0].is_meta:  # a dry run has shapes and no values
        return None
    first = gradients[0]
    if first.is_cpu:
        row = few_values(gradients)
        if row is not None:
            return norm_of_row(row)
    device, dtype, dense = first.device, first.dtype, torch.strided
    with torch.no_grad():
        for gradient in gradients:  # usually they are alike, and finding that out must cost little
            if gradient.dtype is not dtype or gradient.layout is not dense or gradient.device != device:
                norms = _norms_of_some(gradients)
                break
        else:
            norms = None if hasattr(first, "full_tensor") else norms_of(list(gradients))
        if norms is None:
            return None
        return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(norms)


def few_values(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return a copy of all values side by side, if that takes less time than a kernel for each tensor; else None.

    That is the case for few values of one type on the CPU, whose gradients are not recorded.
    """
    left, dtype, dense, recorded = LARGE, tensors[0].dtype, torch.strided, torch.is_grad_enabled()
    for tensor in tensors:
        left -= tensor.numel()
        alike = tensor.dtype is dtype and tensor.layout is dense and tensor.is_cpu and type(tensor) in _PLAIN
        if left < 0 or not alike or (recorded and tensor.requires_grad):
            return None
    row: Tensor = torch_api.flatten_dense_tensors(tensors)
    return row.clone() if len(tensors) == 1 else row  # of a single tensor torch returns a view


def norm_of_row(row: Tensor) -> Tensor:
    """Return the norm of few values; half precision is summed in single."""
    norm: Tensor = torch.linalg.vector_norm(row, dtype=torch.float32 if row.dtype in HALVES else None)
    return norm


def _norms_of_some(gradients: Sequence[Tensor]) -> Tensor | None:
    buckets: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        if gradient.layout is not torch.strided:
            gradient = gradient.coalesce().values() if gradient.is_sparse else gradient.values()
        buckets.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    rows = []
    for bucket in buckets.values():
        if hasattr(bucket[0], "full_tensor"):
            return None
        rows.append(norms_of(bucket))
    return rows[0] if len(rows) == 1 else torch.cat(of_one_kind(rows))


def of_one_kind(norms: list[Tensor], device: torch.device | None = None) -> list[Tensor]:
    """Return tensors on one device, by default that of the first, and of a type that holds all of them."""
    device = norms[0].device if device is None else device
    wide = torch.float32
    for norm in norms:
        wide = torch.promote_types(wide, norm.dtype)
    return [norm.to(device, wide, non_blocking=True) for norm in norms]


def dense_gradients(parameters: Sequence[Tensor]) -> tuple[list[Tensor | None], tuple[int, ...]]:
    """Return the gradient of each parameter or None; and which are None because they are sparse or split.

    Summing duplicates in a sparse gradient would mean to wait for the device.
    """
    gradients: list[Tensor | None] = [parameter.grad for parameter in parameters]
    unknown = tuple(
        [
            place
            for place, gradient in enumerate(gradients)
            if gradient is not None and (gradient.layout is not torch.strided or hasattr(gradient, "full_tensor"))
        ]
    )
    for place in unknown:
        gradients[place] = None
    return gradients, unknown
