"""Fills tensors from others, bit for bit, where they lie.

In: pairs of a living tensor and its source. Promised: the version counters of the living ones stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mlflow_stability.probes import torch_api


def fill(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Fill the first of each pair from the second; both have one shape and type."""
    targets, sources = [], []
    for target, source in pairs:
        if target.layout is not torch.strided:
            _fill_sparse(target, source)
            continue
        target = target.data
        for dimension, (size, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
            if stride == 0 and size > 1:  # expanded: its elements are one in memory
                target, source = target.narrow(dimension, 0, 1), source.narrow(dimension, 0, 1)
        targets.append(target)
        sources.append(source)
    if targets:
        torch_api.foreach_copy_(targets, sources, non_blocking=False)


def _fill_sparse(target: Tensor, source: Tensor) -> None:
    # `.data` of a sparse tensor is another one: what it points to is changed in the tensor itself.
    with torch_api.unsafe_preserve_version_counter(target), torch.no_grad():
        if target._nnz() != source._nnz() and target.layout is not torch.sparse_coo:
            target.resize_as_sparse_(source)
        target.copy_(source)
