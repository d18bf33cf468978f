"""The gradient norm of a model whose tensors are split over processes, as far as this process can tell.

In: an optimizer before its step, and the ranks that train together. Out: the squares of the gradients that this process
holds, which summed over all of them are those of the whole model. Guarantees: nothing is communicated, nothing is
waited for; a part that cannot be known here makes it none at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.ranks.shards import TrainingRanks, local_part
from mlflow_stability.probes.tensors.gradient_norm import parameters_of, total_norm

MOST_PARTIAL = 2**16
"""Up to how many values of gradients that are still to be summed over processes are sent as they are."""


@dataclass(frozen=True, slots=True)
class LocalSquares:
    """What this process contributes to the squared norm of all gradients."""

    squares: Tensor
    partial: Tensor | None
    """Values that are to be summed over processes before they are squared."""


def local_squares(optimizer: Optimizer, ranks: TrainingRanks, unscale: Tensor | None) -> LocalSquares | None:
    """The squares of the gradients of one optimizer; None where a part of them cannot be known here."""
    by_share: dict[float, list[Tensor]] = {}
    partial: list[Tensor] = []
    for parameter in parameters_of(optimizer):
        gradient = parameter.grad
        if gradient is None:
            continue
        local, share = local_part(gradient), ranks.share(gradient, parameter)
        if share is not None:
            by_share.setdefault(share, []).append(local)
            continue
        copies = _partial_share(gradient, ranks)
        if copies is None:
            return None
        partial.append(local.detach().reshape(-1).double() * copies)
    found: Tensor | None = None
    with torch.no_grad():
        for share, some in by_share.items():
            norm = total_norm(some)
            if norm is None:
                return None
            squares = norm.double().square() * share
            found = squares if found is None else found + squares.to(found.device)
        scale = None if unscale is None else unscale.double()
        if found is None:
            found = torch.zeros((), dtype=torch.float64)
        values = torch.cat(partial) if partial else None
        if scale is not None:
            found = found / scale.to(found.device).square()
            values = None if values is None else values / scale.to(values.device)
    return None if values is not None and len(values) > MOST_PARTIAL else LocalSquares(found, values)


def _partial_share(gradient: Any, ranks: TrainingRanks) -> float | None:
    """What of a value still to be summed counts here; None where it is cut into shards besides."""
    mesh, copies = gradient.device_mesh, 1
    for dimension, placement in enumerate(gradient.placements):
        if placement.is_replicate():
            copies *= mesh.size(dimension)
        elif not placement.is_partial() or getattr(placement, "reduce_op", "sum") != "sum":
            return None
    return ranks.share_in_mesh(mesh, copies)
