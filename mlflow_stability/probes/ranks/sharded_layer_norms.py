"""Squares of weights, gradients, updates and momentum of a split model, as far as this process holds them.

In: optimizers before and after their steps. Out: squares by parameter and by layer, which summed over all processes
are those of the model that nobody split. Guarantees: nothing is communicated; copies of weights stay within the memory
budget and live for one step; every process measures the same parameters at the same step.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.objects import holder_of_state, state_of
from mlflow_stability.probes.objects.model_discovery import models_of
from mlflow_stability.probes.objects.module_names import owners_of_parameters
from mlflow_stability.probes.parameters.layer_layout import LayerLayout
from mlflow_stability.probes.parameters.momentum_norm import BUFFERS
from mlflow_stability.probes.parameters.weight_updates import UpdateChunks
from mlflow_stability.probes.ranks.rank_row import Layout
from mlflow_stability.probes.ranks.shards import TrainingRanks, local_part
from mlflow_stability.probes.tensors.device_numbers import on_device
from mlflow_stability.probes.tensors.flat_copies import bytes_of_copy, copy_budget, flat_copies
from mlflow_stability.probes.tensors.memory_chunks import share_out
from mlflow_stability.probes.tensors.tensor_sums import squares

HASH_BITS = 0xFFFFF
"""A sum of squares of such numbers is exact in double precision."""


@dataclass(slots=True)
class _Held:
    """What one optimizer trains, in the order of its groups: the same in every process."""

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
    """The shards of one training."""

    def __init__(self, ranks: TrainingRanks, budget_bytes: int | None = None) -> None:
        self.ranks = ranks
        self._budget = budget_bytes
        self._held: Any = WeakIdKeyDictionary()
        self._layouts: dict[tuple[str, ...], LayerLayout] = {}
        self._rows: dict[str, list[Tensor]] = {}
        self._stepped: list[_Held] = []
        self._before: _Before | None = None
        self.layers: LayerLayout | None = None
        """The layers of all optimizers together."""

    def learn(self, optimizers: Sequence[Optimizer]) -> None:
        """Name what these optimizers train."""
        owners = owners_of_parameters(models_of(optimizers))
        places = {parameter: place for place, parameter in enumerate(owners)}
        self._held.clear()
        together: list[_Held] = []
        for optimizer in optimizers:
            self._held[optimizer] = held = self._look(optimizer, owners, places)
            together.append(held)
        names = [name for each in together for name in each.names]
        self.layers = LayerLayout(names, [place for each in together for place in each.order])

    def layout(self, partial: int) -> Layout:
        """What others must have too, for sums to mean anything; `partial`: how many gradient values are not whole."""
        names = () if self.layers is None else self.layers.names
        said = "\n".join((*names, str(partial)))
        return Layout(len(names), partial, zlib.crc32(said.encode()) & HASH_BITS)

    def knows(self, optimizer: Optimizer) -> bool:
        """Whether it trains what it did when it was looked at."""
        held = self._held.get(optimizer)
        return held is not None and held.key == _key(optimizer)

    def before_step(self, optimizer: Optimizer, unscale: Tensor | None, updates: bool) -> None:
        """Take squares of weights and gradients, and copy weights whose updates are to be measured."""
        held: _Held = self._held[optimizer]
        parameters = _trained(optimizer)
        local = [local_part(each.detach()) for each in parameters]
        self._stepped.append(held)
        with torch.no_grad():
            weights = squares(local)
            if weights is None:
                return
            shares = held.shares.to(weights.device)
            forces = self._gradients(parameters, weights, unscale)
            rates = _rates(optimizer, held, weights)
            self._add("norms", torch.stack((weights * shares, forces, forces * rates.square())))
            if updates and held.chunks is not None:
                pieces = [piece.of(local) for piece in held.chunks.now]
                copies = flat_copies(pieces)
                found = squares(copies)
                if found is not None:
                    self._before = _Before(id(optimizer), pieces, copies, found)

    def after_step(self, optimizer: Optimizer, skipped: bool) -> None:
        """Compare weights with what they were, and look at the momentum."""
        held: _Held | None = self._held.get(optimizer)
        before, self._before = self._before, None
        if held is None or not self._stepped:
            return
        with torch.no_grad():
            shares = held.shares
            if before is not None and before.optimizer == id(optimizer) and not skipped and held.chunks is not None:
                filled = [at for at, each in enumerate(before.copies) if each.numel()]
                torch_api.foreach_sub_([before.copies[at] for at in filled], [before.pieces[at] for at in filled])
                moved = squares(before.copies)
                assert moved is not None
                held.chunks.took(torch.stack((before.weights, moved)), 0, getattr(optimizer, "found_inf", None))
                if held.chunks.complete and held.chunks.just_completed:
                    rows = held.chunks.rows()
                    self._add("updates", rows * shares.to(rows.device))
            buffers = [_buffer(optimizer.state.get(each)) for each in _trained(optimizer)]
            found = squares(buffers)
            row = shares.new_zeros(len(shares)) if found is None else found * shares.to(found.device)
            self._add("momentum", row.unsqueeze(0))

    def take(self, by_layer: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The squares of the capture, of the whole model and by layer; nothing where not all of it was seen."""
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
                joined = parts[0] if len(parts) == 1 else torch.cat([each.to(parts[0].device) for each in parts], 1)
                whole[key] = joined.sum(1)
                if by_layer:
                    layers[key] = self.layers.sums(joined).flatten()
        return whole, layers

    def drop(self) -> None:
        """Forget what was measured in this capture."""
        self._rows, self._stepped, self._before = {}, [], None

    def _add(self, key: str, rows: Tensor) -> None:
        self._rows.setdefault(key, []).append(rows)

    def _gradients(self, parameters: Sequence[Tensor], like: Tensor, unscale: Tensor | None) -> Tensor:
        """Squares of gradients as they count here; NaN where they are still to be summed over processes."""
        gradients = [each.grad for each in parameters]
        shares = [
            0.0 if gradient is None else self.ranks.share(gradient, parameter)
            for gradient, parameter in zip(gradients, parameters, strict=True)
        ]
        found = squares([None if each is None else local_part(each.detach()) for each in gradients])
        if found is None:
            return torch.zeros_like(like)
        counted = on_device([torch.nan if each is None else each for each in shares], like.device, like.dtype)
        forces = found.to(like.device) * counted
        return forces if unscale is None else forces / unscale.to(forces).square()

    def _look(self, optimizer: Optimizer, owners: dict[int, str], places: dict[int, int]) -> _Held:
        names, order, groups, shares, shapes, sizes = [], [], [], [], [], []
        parameters = _trained(optimizer)
        group_of = {id(each): at for at, group in enumerate(optimizer.param_groups) for each in group["params"]}
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
    """The squared momentum of the parameters whose state is here; None where the optimizer shares none out."""
    if holder_of_state(optimizer) is optimizer:
        return None
    buffers = [_buffer(each) for each in state_of(optimizer).values()]
    with torch.no_grad():
        found = squares([each for each in buffers if each is not None])
        return torch.zeros(1, dtype=torch.float64) if found is None else found.sum().reshape(1)


def _trained(optimizer: Optimizer) -> list[Tensor]:
    """The parameters that are trained: the same in every process, also those of which this one holds nothing."""
    return [
        each
        for group in optimizer.param_groups
        for each in group["params"]
        if each.requires_grad and each.is_floating_point()
    ]


def _key(optimizer: Optimizer) -> tuple[int, ...]:
    return tuple([id(each) for group in optimizer.param_groups for each in group["params"] if each.requires_grad])


def _largest_local_shape(parameter: Any) -> tuple[int, ...]:
    """Of the largest shard that any process holds: what is copied together must be the same in all of them."""
    shape = list(parameter.shape)
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is not None:
        for dimension, placement in enumerate(parameter.placements):
            if placement.is_shard():
                shape[placement.dim] = ceil(shape[placement.dim] / mesh.size(dimension))
    return tuple(shape)


def _rates(optimizer: Optimizer, held: _Held, like: Tensor) -> Tensor:
    """The learning rate of each parameter."""
    rates = [group.get("lr") for group in optimizer.param_groups]
    if not any(isinstance(each, Tensor) for each in rates):
        numbers = [torch.nan if each is None else float(each) for each in rates]
        return on_device([numbers[group] for group in held.groups], like.device, like.dtype)
    row = [
        local_part(each.detach()).reshape(()).to(like)
        if isinstance(each, Tensor)
        else like.new_full((), torch.nan if each is None else each)
        for each in rates
    ]
    return torch.stack(row)[on_device(held.groups, like.device, torch.long)]


def _buffer(state: object) -> Tensor | None:
    """The part of the first moment that is here."""
    if not isinstance(state, dict):
        return None
    for name in BUFFERS:
        buffer = state.get(name)
        if isinstance(buffer, Tensor) and buffer.is_floating_point():
            return local_part(buffer.detach())
    return None
