"""Parts that this process holds of tensors split over processes, and the processes that train together.

For each part there is the share with which its squares count, so that the sum over all processes counts every value
once. Guarantees: placements are read and nothing is communicated; torch's pipelining is never loaded; Python's objects
are looked through a few times in all, not at every step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from mlflow_stability.probes.gradient_norm import is_of_one_rank, is_split, local_part, parameters_of, world_size
from mlflow_stability.probes.model_discovery import living, models_of
from mlflow_stability.probes.step.readback import values_on_host

# Each new number of losses a step is a look through Python's objects: some tenths of a second for a million of them.
MAX_LOOKS = 8
MAX_KNOWN = 1000  # numbers of losses a step that are remembered
_STAGE, _SCHEDULES = "torch.distributed.pipelining.stage", "torch.distributed.pipelining.schedules"


def ranks_of_pipeline(optimizers: Sequence[Optimizer]) -> tuple[int, ...]:
    """Return the processes of the pipeline whose stages these optimizers train; nothing without stages."""
    stages = sys.modules.get(_STAGE)
    if stages is None or not torch.distributed.is_initialized():
        return ()
    trained = {id(parameter) for optimizer in optimizers for parameter in parameters_of(optimizer)}
    (living_stages,) = living(stages.PipelineStage.__base__)  # also stages that are made from a traced model
    ranks: set[int] = set()
    for stage in living_stages:
        if trained.isdisjoint(map(id, Module.parameters(stage.submod))):
            continue
        group: Any = getattr(stage, "group", None)
        ranks.update(torch.distributed.get_process_group_ranks(group or torch.distributed.group.WORLD))
    return tuple(sorted(ranks))


class MicroBatches:
    """Number of micro-batches by which a pipeline schedule divides gradients and the sum of their losses."""

    def __init__(self) -> None:
        self._by_losses: dict[int, int] = {}
        self._newest = 1

    def of(self, losses: int) -> int:
        """Return that number for a step with `losses` losses; 1 without a schedule."""
        schedules = sys.modules.get(_SCHEDULES)
        if schedules is None:
            return 1
        if losses not in self._by_losses:
            if len(self._by_losses) < MAX_LOOKS:
                (pipelines,) = living(schedules._PipelineSchedule)
                scaled = [pipeline._n_microbatches for pipeline in pipelines if getattr(pipeline, "scale_grads", False)]
                self._newest = int(scaled[-1]) if scaled else 1
            elif len(self._by_losses) > MAX_KNOWN:
                return self._newest
            self._by_losses[losses] = self._newest
        return self._by_losses[losses]


FSDP1 = "FullyShardedDataParallel"


def whole_scalar(tensor: Tensor) -> Tensor | None:
    """Return a scalar such as `clip_grad_norm_` returns, or None if this process holds only a part of it."""
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return None if hasattr(tensor, "full_tensor") else tensor
    return local_part(tensor) if all(placement.is_replicate() for placement in placements) else None


@dataclass(frozen=True, slots=True)
class TrainingRanks:
    """The processes that train one model together, by their ranks in the world."""

    ranks: tuple[int, ...]
    is_split: bool
    """Whether parameters are split over them."""
    flat_shares: dict[int, float]
    """Shares of parameters of FSDP1, by identity: one over how often each value is held."""
    stage_copies: int = 0
    """Number of these processes with the same pipeline stage; 0 without a pipeline."""

    def share(self, tensor: Tensor, parameter: Tensor) -> float | None:
        """Return what the squares of a parameter or its gradient count here; None if they cannot be summed."""
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
        """Return what squares count whose values are held so often in one mesh of a model or stage."""
        return float(mesh.size()) / (copies * (self.stage_copies or len(self.ranks)))


def training_ranks(optimizers: Sequence[Optimizer]) -> TrainingRanks | None:
    """Return the processes that step these optimizers together, or None if this one trains alone.

    They are read from the meshes of `DTensor` parameters, and the process groups of FSDP, DDP,
    `ZeroRedundancyOptimizer` and pipelines. Of a pipeline whose stages several processes share, it is all processes.
    """
    if world_size() == 1:
        return None
    parameters = [parameter for optimizer in optimizers for parameter in parameters_of(optimizer)]
    split = any(map(is_split, parameters))
    pipeline = ranks_of_pipeline(optimizers)
    if len(pipeline) > 1:
        world = tuple(range(world_size()))  # also where nothing here is split: another stage may be
        ranks = pipeline if len(world) % len(pipeline) else world
        copies, units = len(ranks) // len(pipeline), [module for module, kind in _wrappers(optimizers) if kind == FSDP1]
        shares = {key: share / copies for unit in units for key, share in _flat_shares(unit).items()}
        return TrainingRanks(ranks, True, shares, copies)
    members: set[int] = set()
    for parameter in parameters:
        mesh: Any = getattr(parameter, "device_mesh", None)
        if mesh is not None:
            members.update(map(int, values_on_host(mesh.mesh.flatten())))
    flat: dict[int, float] = {}
    for module, kind in _wrappers(optimizers):
        members.update(_ranks_of(module.process_group) if hasattr(module, "process_group") else ())
        if kind == FSDP1:
            members.update(_ranks_of(getattr(module, "_inter_node_pg", None)))
            flat.update(_flat_shares(module))
    for optimizer in optimizers:
        members.update(_ranks_of(getattr(optimizer, "process_group", None)))
    if not members and any(map(is_of_one_rank, parameters)):
        members.update(range(world_size()))  # the script sums the other gradients itself
    if len(members) < 2 or torch.distributed.get_rank() not in members:
        return None
    held = {key: share / len(members) for key, share in flat.items()}
    return TrainingRanks(tuple(sorted(members)), split, held)


def _wrappers(optimizers: Sequence[Optimizer]) -> Iterator[tuple[Any, str]]:
    for model in models_of(optimizers):
        for module in Module.modules(model):
            kind = type(module).__name__
            if kind in (FSDP1, "DistributedDataParallel"):
                yield module, kind


def _ranks_of(group: Any) -> list[int]:
    return [] if group is None else list(torch.distributed.get_process_group_ranks(group))


def _flat_shares(module: Any) -> dict[int, float]:
    handle = getattr(module, "_handle", None)
    if handle is None:
        return {}
    size = float(handle.process_group.size()) if handle.uses_sharded_strategy else 1.0
    flat = handle.flat_param
    return {id(parameter): size for parameter in (flat, *(getattr(flat, "_params", None) or ()))}
