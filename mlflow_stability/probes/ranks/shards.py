"""Says what this process holds of tensors that are split over processes, and which processes share a training.

In: optimizers, their parameters and gradients. Out: local parts; of each the share with which its squares count, so
that the sum over all processes counts every value once; the ranks that train together. Guarantees: placements are
read and nothing is communicated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.objects.model_discovery import models_of
from mlflow_stability.probes.ranks.pipeline_stages import ranks_of_pipeline
from mlflow_stability.probes.step.readback import values_on_host
from mlflow_stability.probes.tensors.gradient_norm import (
    is_of_one_rank,
    is_split,
    parameters_of,
    world_size,
)

FSDP1 = "FullyShardedDataParallel"


def local_part(tensor: Tensor) -> Tensor:
    """What this process holds of a `DTensor`; any other tensor as it is."""
    local = getattr(tensor, "_local_tensor", None)
    if local is None and hasattr(tensor, "to_local"):
        with torch.no_grad():
            local = tensor.to_local()
    return tensor if local is None else local


def whole_scalar(tensor: Tensor) -> Tensor | None:
    """A scalar that this process knows whole, as `clip_grad_norm_` returns it; None where it holds a part of it."""
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return None if hasattr(tensor, "full_tensor") else tensor
    return local_part(tensor) if all(each.is_replicate() for each in placements) else None


@dataclass(frozen=True, slots=True)
class TrainingRanks:
    """The processes that train one model together, by their ranks in the world."""

    ranks: tuple[int, ...]
    is_split: bool
    """Whether any of the parameters are split over them."""
    flat_shares: dict[int, float]
    """For parameters of FSDP's first version, by identity: one over how often each value is held."""
    stage_copies: int = 0
    """Of pipeline stages: how many of these processes have the same stage; 0 where there are none."""

    def share(self, tensor: Tensor, parameter: Tensor) -> float | None:
        """What the squares of a parameter or of its gradient count here; None where they cannot be summed."""
        mesh: Any = getattr(tensor, "device_mesh", None)
        if mesh is None and is_of_one_rank(parameter):
            return 1.0
        if mesh is None:
            return self.flat_shares.get(id(parameter), 1.0 / (self.stage_copies or len(self.ranks)))
        placements: Any = tensor.placements  # type: ignore[attr-defined]
        copies = 1
        for dimension, placement in enumerate(placements):
            if placement.is_partial():
                return None
            if placement.is_replicate():
                copies *= mesh.size(dimension)
        return self.share_in_mesh(mesh, copies)

    def share_in_mesh(self, mesh: Any, copies: int) -> float:
        """What a square counts of which each value is held so often in one of the meshes of a model or stage."""
        return float(mesh.size()) / (copies * (self.stage_copies or len(self.ranks)))


def training_ranks(optimizers: Sequence[Optimizer]) -> TrainingRanks | None:
    """The processes that step these optimizers together; None where this one is known to train alone.

    Known are the meshes of `DTensor` parameters, and the process groups of FSDP, DDP, `ZeroRedundancyOptimizer` and of
    pipelines. Of a pipeline whose stages several processes have together, it is all processes.
    """
    if world_size() == 1:
        return None
    parameters = [each for optimizer in optimizers for each in parameters_of(optimizer)]
    split = any(map(is_split, parameters))
    pipeline = ranks_of_pipeline(optimizers)
    if len(pipeline) > 1:
        world = tuple(range(world_size()))  # also where nothing here is split: it may be in another stage
        ranks = pipeline if len(world) % len(pipeline) else world
        copies, units = len(ranks) // len(pipeline), [module for module, kind in _wrappers(optimizers) if kind == FSDP1]
        shares = {key: each / copies for unit in units for key, each in _flat_shares(unit).items()}
        return TrainingRanks(ranks, True, shares, copies)
    known: set[int] = set()
    for each in parameters:
        mesh: Any = getattr(each, "device_mesh", None)
        if mesh is not None:
            known.update(map(int, values_on_host(mesh.mesh.flatten())))
    flat: dict[int, float] = {}
    for module, kind in _wrappers(optimizers):
        known.update(_ranks_of(module.process_group) if hasattr(module, "process_group") else ())
        if kind == FSDP1:
            known.update(_ranks_of(getattr(module, "_inter_node_pg", None)))
            flat.update(_flat_shares(module))
    for optimizer in optimizers:
        known.update(_ranks_of(getattr(optimizer, "process_group", None)))
    if not known and any(map(is_of_one_rank, parameters)):
        known.update(range(world_size()))  # who sums up the other gradients is the script's own business
    if len(known) < 2 or torch.distributed.get_rank() not in known:
        return None
    held = {key: each / len(known) for key, each in flat.items()}
    return TrainingRanks(tuple(sorted(known)), split, held)


def _wrappers(optimizers: Sequence[Optimizer]) -> Iterator[tuple[Any, str]]:
    for model in models_of(optimizers):
        for module in Module.modules(model):
            kind = type(module).__name__
            if kind in (FSDP1, "DistributedDataParallel"):
                yield module, kind


def _ranks_of(group: Any) -> list[int]:
    return [] if group is None else list(torch.distributed.get_process_group_ranks(group))


def _flat_shares(module: Any) -> dict[int, float]:
    """How many processes share out the parameters of one unit of FSDP."""
    handle = getattr(module, "_handle", None)
    if handle is None:
        return {}
    size = float(handle.process_group.size()) if handle.uses_sharded_strategy else 1.0
    flat = handle.flat_param
    return {id(each): size for each in (flat, *(getattr(flat, "_params", None) or ()))}
