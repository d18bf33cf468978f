"""Norms of a model whose tensors are split over processes, as far as this process holds them, and which these are.

For each part that a process holds there is the share with which its squares count, so that the sum over all processes
counts every value once. Guarantees: nothing is communicated, and no device is waited for; a part that is unknown here
makes the norm unknown; copies of weights stay within the memory budget and live for one step; every process measures
the same parameters at the same step.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from mlflow_stability.probes.gradient_norm import (
    is_of_one_rank,
    is_split,
    local_part,
    parameters_of,
    total_norm,
    world_size,
)
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.model_discovery import holder_of_state, living, models_of, owners_of_parameters, state_of
from mlflow_stability.probes.parameters.layers import LayerLayout
from mlflow_stability.probes.parameters.norms import BUFFERS, UpdateChunks, rates_by_parameter
from mlflow_stability.probes.ranks.rank_row import Layout
from mlflow_stability.probes.step.readback import values_on_host
from mlflow_stability.probes.tensor_sums import bytes_of_copy, copy_budget, flat_copies, on_device, share_out, squares

# Values of gradients that are still to be summed over processes; more are not sent.
MOST_PARTIAL = 2**16


@dataclass(frozen=True, slots=True)
class LocalSquares:
    """Contribution of this process to the squared norm of all gradients."""

    squares: Tensor
    partial: Tensor | None  # values that are summed over processes before they are squared


def local_squares(optimizer: Optimizer, ranks: TrainingRanks, unscale: Tensor | None) -> LocalSquares | None:
    """Return the squares of the gradients of one optimizer, or None if a part of them is unknown here."""
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
    total: Tensor | None = None
    with torch.no_grad():
        for share, some in by_share.items():
            norm = total_norm(some)
            if norm is None:
                return None
            squares = norm.double().square() * share
            total = squares if total is None else total + squares.to(total.device)
        scale = None if unscale is None else unscale.double()
        if total is None:
            total = torch.zeros((), dtype=torch.float64)
        values = torch.cat(partial) if partial else None
        if scale is not None:
            total = total / scale.to(total.device).square()
            values = None if values is None else values / scale.to(values.device)
    return None if values is not None and len(values) > MOST_PARTIAL else LocalSquares(total, values)


# What of a value still to be summed counts here; None where it is cut into shards as well.
def _partial_share(gradient: Any, ranks: TrainingRanks) -> float | None:
    mesh, copies = gradient.device_mesh, 1
    for dimension, placement in enumerate(gradient.placements):
        if placement.is_replicate():
            copies *= mesh.size(dimension)
        elif not placement.is_partial() or getattr(placement, "reduce_op", "sum") != "sum":
            return None
    return ranks.share_in_mesh(mesh, copies)


HASH_BITS = 0xFFFFF  # a sum of squares of such numbers is exact in double precision


@dataclass(slots=True)
class _Held:
    names: list[str]
    order: list[int]
    groups: list[int]
    shares: Tensor
    chunks: UpdateChunks | None
    key: tuple[int, ...]


@dataclass(slots=True)
class _Before:
    optimizer: int
    pieces: list[Tensor]
    copies: list[Tensor]
    weights: Tensor


class SplitLayerNorms:
    def __init__(self, ranks: TrainingRanks, budget_bytes: int | None = None) -> None:
        self.ranks = ranks
        self._budget = budget_bytes
        self._held: Any = WeakIdKeyDictionary()
        self._layouts: dict[tuple[str, ...], LayerLayout] = {}
        self._rows: dict[str, list[Tensor]] = {}
        self._stepped: list[_Held] = []
        self._before: _Before | None = None
        self.layers: LayerLayout | None = None  # the layers of all optimizers together

    def learn(self, optimizers: Sequence[Optimizer]) -> None:
        owners = owners_of_parameters(models_of(optimizers))
        places = {parameter: place for place, parameter in enumerate(owners)}
        self._held.clear()
        together: list[_Held] = []
        for optimizer in optimizers:
            self._held[optimizer] = held = self._look(optimizer, owners, places)
            together.append(held)
        names = [name for held in together for name in held.names]
        self.layers = LayerLayout(names, [place for held in together for place in held.order])

    def layout(self, partial: int) -> Layout:
        """Return what must be the same in all processes; `partial`: number of gradient values still to be summed."""
        names = () if self.layers is None else self.layers.names
        text = "\n".join((*names, str(partial)))
        return Layout(len(names), partial, zlib.crc32(text.encode()) & HASH_BITS)

    def knows(self, optimizer: Optimizer) -> bool:
        """Whether this optimizer still trains the same parameters."""
        held = self._held.get(optimizer)
        return held is not None and held.key == _key(optimizer)

    def before_step(self, optimizer: Optimizer, unscale: Tensor | None) -> None:
        """Take squares of weights and gradients, and copy weights whose updates are to be measured."""
        held: _Held = self._held[optimizer]
        parameters = _trained(optimizer)
        local = [local_part(parameter.detach()) for parameter in parameters]
        self._stepped.append(held)
        with torch.no_grad():
            weights = squares(local)
            if weights is None:
                return
            shares = held.shares.to(weights.device)
            forces = self._gradients(parameters, weights, unscale)
            rates = rates_by_parameter(optimizer, held.groups, weights)
            self._add("norms", torch.stack((weights * shares, forces, forces * rates.square())))
            if held.chunks is not None:
                pieces = [piece.of(local) for piece in held.chunks.now]
                copies = flat_copies(pieces)
                copied_squares = squares(copies)
                if copied_squares is not None:
                    self._before = _Before(id(optimizer), pieces, copies, copied_squares)

    def after_step(self, optimizer: Optimizer, skipped: bool) -> None:
        held: _Held | None = self._held.get(optimizer)
        before, self._before = self._before, None
        if held is None or not self._stepped:
            return
        with torch.no_grad():
            shares = held.shares
            if before is not None and before.optimizer == id(optimizer) and not skipped and held.chunks is not None:
                filled = [at for at, copy in enumerate(before.copies) if copy.numel()]
                torch_api.foreach_sub_([before.copies[at] for at in filled], [before.pieces[at] for at in filled])
                moved = squares(before.copies)
                assert moved is not None
                held.chunks.took(torch.stack((before.weights, moved)), 0, getattr(optimizer, "found_inf", None))
                if held.chunks.complete and held.chunks.just_completed:
                    rows = held.chunks.rows()
                    self._add("updates", rows * shares.to(rows.device))
            buffers = [_buffer(optimizer.state.get(parameter)) for parameter in _trained(optimizer)]
            momentum = squares(buffers)
            row = shares.new_zeros(len(shares)) if momentum is None else momentum * shares.to(momentum.device)
            self._add("momentum", row.unsqueeze(0))

    def take(self, by_layer: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the squares of the capture, of the whole model and by layer; nothing if a part was not seen."""
        rows, stepped = self._rows, self._stepped
        self.drop()
        if not stepped or len(stepped) != len(self._held) or self.layers is None:
            return {}, {}
        whole: dict[str, Tensor] = {}
        layers: dict[str, Tensor] = {}
        with torch.no_grad():
            for key, parts in rows.items():
                if len(parts) != len(stepped):
                    continue
                joined = parts[0] if len(parts) == 1 else torch.cat([part.to(parts[0].device) for part in parts], 1)
                whole[key] = joined.sum(1)
                if by_layer:
                    layers[key] = self.layers.sums(joined).flatten()
        return whole, layers

    def drop(self) -> None:
        self._rows, self._stepped, self._before = {}, [], None

    def _add(self, key: str, rows: Tensor) -> None:
        self._rows.setdefault(key, []).append(rows)

    # NaN where gradients are still to be summed over processes.
    def _gradients(self, parameters: Sequence[Tensor], like: Tensor, unscale: Tensor | None) -> Tensor:
        gradients = [parameter.grad for parameter in parameters]
        shares = [
            0.0 if gradient is None else self.ranks.share(gradient, parameter)
            for gradient, parameter in zip(gradients, parameters, strict=True)
        ]
        measured = squares([None if gradient is None else local_part(gradient.detach()) for gradient in gradients])
        if measured is None:
            return torch.zeros_like(like)
        counted = on_device([torch.nan if share is None else share for share in shares], like.device, like.dtype)
        forces = measured.to(like.device) * counted
        return forces if unscale is None else forces / unscale.to(forces).square()

    def _look(self, optimizer: Optimizer, owners: dict[int, str], places: dict[int, int]) -> _Held:
        names, order, groups, shares, shapes, sizes = [], [], [], [], [], []
        parameters = _trained(optimizer)
        group_of = {id(held): at for at, group in enumerate(optimizer.param_groups) for held in group["params"]}
        for at, parameter in enumerate(parameters):
            names.append(owners.get(id(parameter), f"parameter_{at}"))
            order.append(places.get(id(parameter), len(places) + at))
            groups.append(group_of[id(parameter)])
            share = self.ranks.share(parameter, parameter)
            shares.append(torch.nan if share is None else share)
            shapes.append(_largest_local_shape(parameter))
            sizes.append(bytes_of_copy(parameter))
        device = local_part(parameters[0]).device
        budget = copy_budget(device) if self._budget is None else self._budget
        turns = share_out(shapes, sizes, names, budget)
        return _Held(
            names,
            order,
            groups,
            torch.tensor(shares, dtype=torch.float64),
            None if turns is None else UpdateChunks(turns, len(parameters), device),
            _key(optimizer),
        )


def momentum_of_own_part(optimizer: Optimizer) -> Tensor | None:
    """Return the squared momentum of the parameters whose state is here; None if the optimizer shares no state."""
    if holder_of_state(optimizer) is optimizer:
        return None
    buffers = [_buffer(state) for state in state_of(optimizer).values()]
    with torch.no_grad():
        momentum = squares([buffer for buffer in buffers if buffer is not None])
        return torch.zeros(1, dtype=torch.float64) if momentum is None else momentum.sum().reshape(1)


def _trained(optimizer: Optimizer) -> list[Tensor]:
    # Also those of which this process holds nothing, so that all processes have the same.
    parameters = parameters_of(optimizer)
    return [parameter for parameter in parameters if parameter.requires_grad and parameter.is_floating_point()]


def _key(optimizer: Optimizer) -> tuple[int, ...]:
    return tuple([id(parameter) for parameter in parameters_of(optimizer) if parameter.requires_grad])


# Of the largest shard of any process: what is copied together must be the same in all of them.
def _largest_local_shape(parameter: Any) -> tuple[int, ...]:
    shape = list(parameter.shape)
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is not None:
        for dimension, placement in enumerate(parameter.placements):
            if placement.is_shard():
                shape[placement.dim] = ceil(shape[placement.dim] / mesh.size(dimension))
    return tuple(shape)


def _buffer(state: object) -> Tensor | None:
    if not isinstance(state, dict):
        return None
    for name in BUFFERS:
        buffer = state.get(name)
        if isinstance(buffer, Tensor) and buffer.is_floating_point():
            return local_part(buffer.detach())
    return None


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
    is_split: bool  # whether parameters are split over them
    flat_shares: dict[int, float]  # shares of parameters of FSDP1, by identity: one over how often each value is held
    stage_copies: int = 0  # number of these processes with the same pipeline stage; 0 without a pipeline

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
