"""The layers of a training: which parameter of an optimizer belongs to which module.

Guarantees: models are searched for only when an optimizer or its parameters are new; neither models nor parameters are
kept alive; a handful of kernels for any number of layers; the signals of a block are the same objects every time.
Parameters that are split over processes are left out: a part of a norm is not the norm.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from mlflow_stability.probes.gradient_norm import is_split, parameters_of, world_size
from mlflow_stability.probes.model_discovery import models_of, owners_of_parameters
from mlflow_stability.probes.step.readback import Block, signals_at
from mlflow_stability.probes.tensor_sums import on_device


class LayerLayout:
    """Layers in the order of the model; adds up by layer what was measured by parameter."""

    def __init__(self, names: Sequence[str], order: Sequence[int]) -> None:
        by_place = sorted(zip(order, names, strict=True))
        self.names = tuple(dict.fromkeys(name for _, name in by_place))
        numbers = {name: number for number, name in enumerate(self.names)}
        self.of_parameter = tuple(numbers[name] for name in names)  # index of the layer by parameter
        self._indices: dict[torch.device, Tensor] = {}

    def sums(self, rows: Tensor) -> Tensor:
        """Return sums by layer, of rows with a column for each parameter."""
        return rows.new_zeros(len(rows), len(self.names)).index_add_(1, self._index(rows.device), rows)

    def largest(self, row: Tensor) -> Tensor:
        """Return the largest by layer, of a row of values of 0 or more."""
        return row.new_zeros(len(self.names)).scatter_reduce_(0, self._index(row.device), row, "amax")

    def _index(self, device: torch.device) -> Tensor:
        index = self._indices.get(device)
        if index is None:
            index = self._indices[device] = on_device(self.of_parameter, device, torch.long)
        return index

    def touched_by(self, columns: Collection[int]) -> tuple[int, ...]:
        return tuple(sorted({self.of_parameter[column] for column in columns}))

    def block(self, quantities: tuple[str, ...], rows: Tensor, only: tuple[int, ...] | None = None) -> Block:
        """Return a block of one row of values for each quantity; with `only`, of these layers."""
        if only is not None and len(only) == len(self.names):
            only = None
        if only is not None:
            rows = rows.index_select(1, on_device(only, rows.device, torch.long))
        names = self.names if only is None else [self.names[at] for at in only]
        return Block(signals_at(quantities, *names), rows.flatten())


# A script that makes an optimizer for every sample has no layers that could be followed.
MAX_SEARCHES = 32
MAX_LAYOUTS = 32

_Key: TypeAlias = tuple[tuple[int, ...], tuple[bool, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class HeldLayers:
    """What one optimizer trains, in the order of its groups. Compared by identity: a new one means new layers."""

    positions: tuple[int, ...]  # indices of the measured parameters among those of the optimizer
    names: tuple[str, ...]  # layer of each
    groups: tuple[int, ...]  # group of each
    order: tuple[int, ...]  # place of each in its model
    frozen: tuple[str, ...]  # layers with parameters in the optimizer that need no gradient; those are not measured
    sizes: tuple[int, ...]  # number of values of each
    complete: bool  # nothing that is trained was left out, so that sums are those of the whole model
    is_split: bool = False  # some of it is split over processes: then norms of layers are taken by all of them together

    def parameters(self, optimizer: Optimizer) -> list[Tensor]:
        held = parameters_of(optimizer)
        return held if len(held) == len(self.positions) else [held[at] for at in self.positions]

    def is_all_of(self, optimizer: Optimizer) -> bool:
        return len(self.positions) == sum([len(group["params"]) for group in optimizer.param_groups])

    def layer_sizes(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for name, size in zip(self.names, self.sizes, strict=True):
            sizes[name] = sizes.get(name, 0) + size
        return sizes


_NONE = HeldLayers((), (), (), (), (), (), complete=False)


class Layers:
    """The layers of one training, as far as its optimizers were seen."""

    def __init__(self) -> None:
        self._held: MutableMapping[Optimizer, tuple[_Key, HeldLayers]] = WeakIdKeyDictionary()
        self._layouts: dict[tuple[HeldLayers, ...], LayerLayout] = {}
        self._searches = 0
        self._now: tuple[int, int, HeldLayers] | None = None
        # Identity of an optimizer, step, and what was measured of its weights then.
        self.weights: tuple[tuple[int, int], Any] | None = None

    def held(self, optimizer: Optimizer, step: int) -> HeldLayers:
        """Return what this optimizer trains; looked at once a step."""
        if self._now is not None and self._now[:2] == (id(optimizer), step):
            return self._now[2]
        parameters = parameters_of(optimizer)
        key = tuple(map(id, parameters)), tuple([parameter.requires_grad for parameter in parameters])
        looked_up = self._held.get(optimizer)
        if looked_up is not None and looked_up[0] == key:
            held = looked_up[1]
        elif self._searches < MAX_SEARCHES:
            self._assign_names(optimizer, key)
            held = self._held[optimizer][1]
        else:
            held = _NONE
        self._now = id(optimizer), step, held
        return held

    def layout(self, together: Sequence[HeldLayers]) -> LayerLayout:
        key = tuple(together)
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            names = [name for held in key for name in held.names]
            layout = self._layouts[key] = LayerLayout(names, [place for held in key for place in held.order])
        return layout

    # Names everything again: with a second model, names of the first may change.
    def _assign_names(self, newcomer: Optimizer, key: _Key) -> None:
        self._searches += 1
        optimizers = [other for other in self._held if other is not newcomer] + [newcomer]
        owners = owners_of_parameters(models_of(optimizers))
        places = {parameter: place for place, parameter in enumerate(owners)}
        for number, optimizer in enumerate(optimizers):
            prefix = f"optimizer_{number}." if number else ""
            held_key = key if optimizer is newcomer else self._held[optimizer][0]
            self._held[optimizer] = held_key, _held_by(optimizer, prefix, owners, places)
        self._layouts.clear()


def _held_by(optimizer: Optimizer, prefix: str, owners: dict[int, str], places: dict[int, int]) -> HeldLayers:
    rows: list[tuple[int, str, int, int, int]] = []
    frozen: dict[str, None] = {}
    complete, split, position = True, False, 0
    partitioned = world_size() > 1 and "deepspeed" in sys.modules  # its optimizers step copies of parts of the weights
    seen: set[int] = set()
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            name = owners.get(id(parameter), f"{prefix}parameter_{position}")
            place = places.get(id(parameter), len(places) + position)
            if not parameter.requires_grad:
                frozen[name] = None
            elif not _can_be_measured(parameter):
                complete, split = False, split or is_split(parameter)
            elif partitioned and id(parameter) not in owners:
                complete, split = False, True
            elif parameter.numel() and id(parameter) not in seen:  # torch only warns of one that is listed twice
                seen.add(id(parameter))
                rows.append((position, name, number, place, parameter.numel()))
            position += 1
    positions, names, groups, order, sizes = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    return HeldLayers(positions, names, groups, order, tuple(frozen), sizes, complete, split)


def _can_be_measured(parameter: Tensor) -> bool:
    is_number = parameter.is_floating_point() or parameter.is_complex()
    return is_number and not is_split(parameter) and not is_lazy(parameter)
