"""Describe a batch: shapes, ranges, non-finite values, tokens; and save its tensors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from mlflow_stability.kinds.reported.broken_steps import TensorFacts, TokenFacts
from mlflow_stability.recovery.nan_origin.batch_capture import CapturedBatch, named_tensors

MOST_VALUES = 2**22
"""Maximum number of values among which tokens are counted."""


def facts_of(batch: CapturedBatch) -> tuple[TensorFacts, ...]:
    """Describe every tensor of a batch; waits for the device."""
    with torch.no_grad():
        return tuple(_facts(name, tensor.detach()) for name, tensor in inputs_of(batch))


def facts_of_tensor(name: str, tensor: Tensor) -> TensorFacts:
    """Describe one tensor, without counting tokens."""
    with torch.no_grad():
        return _facts(name, tensor.detach(), tokens=False)


def save_batch(passes: Sequence[CapturedBatch], path: Path) -> Path:
    """Write the tensors of a batch with their names; those of several passes with their number."""
    prefixes = [f"micro_batch_{number}." for number in range(1, len(passes) + 1)] if len(passes) > 1 else [""]
    tensors = {
        prefix + name: tensor.detach().cpu().clone()
        for prefix, batch in zip(prefixes, passes, strict=True)
        for name, tensor in inputs_of(batch)
    }
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        torch.save(tensors, unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def inputs_of(batch: CapturedBatch) -> list[tuple[str, Tensor]]:
    """Return the tensors of a batch with their paths, such as ``args[0]``."""
    positional = [(f"args{name}", tensor) for name, tensor in named_tensors(batch.args)]
    return positional + [(f"kwargs{name}", tensor) for name, tensor in named_tensors(batch.kwargs)]


def _facts(name: str, tensor: Tensor, tokens: bool = True) -> TensorFacts:
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided:
        tensor = tensor.coalesce().values() if tensor.is_sparse else tensor.values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.is_floating_point():
        counted = _tokens(tensor) if tokens and tensor.dtype != torch.bool and tensor.numel() else None
        least, greatest, mean = _range(tensor.to(torch.float64))
        return TensorFacts(name, shape, dtype, least, greatest, mean, tokens=counted)
    if tensor.element_size() == 1:
        tensor = tensor.float()  # numbers of eight bits can be kept, and not much else
    nan, inf = int(tensor.isnan().sum()), int(tensor.isinf().sum())
    values = tensor if not nan + inf else tensor[tensor.isfinite()]
    return TensorFacts(name, shape, dtype, *_range(values), nan, inf)


def _range(values: Tensor) -> tuple[float | None, float | None, float | None]:
    if not values.numel():
        return None, None, None
    least, greatest = torch.aminmax(values)
    wide = torch.float64 if values.device.type == "cpu" else torch.float32
    return float(least), float(greatest), float(values.mean(dtype=wide))


def _tokens(tensor: Tensor) -> TokenFacts:
    rows = tensor.reshape(-1, tensor.shape[-1]) if tensor.dim() > 1 else tensor.reshape(1, -1)
    rows = rows[: max(1, MOST_VALUES // max(1, rows.shape[1]))].cpu()
    tokens, counts = torch.unique(rows, return_counts=True)
    most = int(counts.argmax())
    runs = [int(torch.unique_consecutive(row, return_counts=True)[1].max()) for row in rows]
    return TokenFacts(
        different=len(tokens),
        most_frequent=int(tokens[most]),
        its_share=float(counts[most]) / rows.numel(),
        longest_run=max([0, *runs]),
        repeated_rows=len(rows) - len(torch.unique(rows, dim=0)) if tensor.dim() > 1 else 0,
        negative=int((rows < 0).sum()),
    )
