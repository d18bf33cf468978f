"""Knows which parameter of an optimizer belongs to which module, so that numbers can be given by layer.

In: an optimizer. Out: its trainable parameters and, for each, its layer: the module that owns it directly. Guarantees:
models are searched for only when an optimizer or its parameters are new; neither models nor parameters are kept alive.
Parameters that are split over processes are left out: a part of a norm is not the norm.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from mlflow_stability.probes.objects.model_discovery import models_of
from mlflow_stability.probes.objects.module_names import owners_of_parameters
from mlflow_stability.probes.parameters.layer_layout import LayerLayout
from mlflow_stability.probes.tensors.gradient_norm import is_split, parameters_of, world_size

MOST_SEARCHES = 32
"""A script that makes an optimizer for every sample has no layers that could be followed: no more are named then."""
MOST_LAYOUTS = 32

_Key: TypeAlias = tuple[tuple[int, ...], tuple[bool, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class HeldLayers:
    """What one optimizer trains, in the order of its groups. Told apart by identity: a new one means new layers."""

    positions: tuple[int, ...]
    """Which of the optimizer's parameters are measured."""
    names: tuple[str, ...]
    """The layer of each of these."""
    groups: tuple[int, ...]
    """The group of each of these."""
    order: tuple[int, ...]
    """Where each of these comes in its model."""
    frozen: tuple[str, ...]
    """Layers of which the optimizer holds parameters that need no gradient; those are not measured."""
    sizes: tuple[int, ...]
    """How many values each of these has."""
    complete: bool
    """Whether nothing that is trained had to be left out, so that a sum over all of these is the whole."""
    is_split: bool = False
    """Whether any of it is split over processes: then norms of layers are taken by all of them together."""

    def parameters(self, optimizer: Optimizer) -> list[Tensor]:
        """The parameters that are measured."""
        held = parameters_of(optimizer)
        return held if len(held) == len(self.positions) else [held[at] for at in self.positions]

    def is_all_of(self, optimizer: Optimizer) -> bool:
        """Whether every parameter of the optimizer is measured, and each once."""
        return len(self.positions) == sum([len(group["params"]) for group in optimizer.param_groups])

    def layer_sizes(self) -> dict[str, int]:
        """How many values this optimizer trains in each layer."""
        found: dict[str, int] = {}
        for name, size in zip(self.names, self.sizes, strict=True):
            found[name] = found.get(name, 0) + size
        return found


_NONE = HeldLayers((), (), (), (), (), (), complete=False)


class Layers:
    """The layers of one training, as far as its optimizers were met."""

    def __init__(self) -> None:
        self._held: MutableMapping[Optimizer, tuple[_Key, HeldLayers]] = WeakIdKeyDictionary()
        self._layouts: dict[tuple[HeldLayers, ...], LayerLayout] = {}
        self._searches = 0
        self._now: tuple[int, int, HeldLayers] | None = None
        self.weights: tuple[tuple[int, int], Any] | None = None
        """What was taken last of the weights, and of which optimizer, at which step."""

    def held(self, optimizer: Optimizer, step: int) -> HeldLayers:
        """What this optimizer trains; looked at once a step."""
        if self._now is not None and self._now[:2] == (id(optimizer), step):
            return self._now[2]
        parameters = parameters_of(optimizer)
        key = tuple(map(id, parameters)), tuple([each.requires_grad for each in parameters])
        known = self._held.get(optimizer)
        if known is not None and known[0] == key:
            held = known[1]
        elif self._searches < MOST_SEARCHES:
            self._look(optimizer, key)
            held = self._held[optimizer][1]
        else:
            held = _NONE
        self._now = id(optimizer), step, held
        return held

    def layout(self, together: Sequence[HeldLayers]) -> LayerLayout:
        """The layers of the optimizers of one capture together."""
        key = tuple(together)
        found = self._layouts.get(key)
        if found is None:
            if len(self._layouts) >= MOST_LAYOUTS:
                self._layouts.clear()
            names = [name for each in key for name in each.names]
            found = self._layouts[key] = LayerLayout(names, [place for each in key for place in each.order])
        return found

    def _look(self, newcomer: Optimizer, key: _Key) -> None:
        """Search for the models, and name everything anew: with a second model, names of the first may change."""
        self._searches += 1
        optimizers = [each for each in self._held if each is not newcomer] + [newcomer]
        owners = owners_of_parameters(models_of(optimizers))
        places = {parameter: place for place, parameter in enumerate(owners)}
        for number, optimizer in enumerate(optimizers):
            before = f"optimizer_{number}." if number else ""
            found = _held_by(optimizer, before, owners, places)
            now = key if optimizer is newcomer else self._held[optimizer][0]
            self._held[optimizer] = now, found
        self._layouts.clear()


def _held_by(optimizer: Optimizer, before: str, owners: dict[int, str], places: dict[int, int]) -> HeldLayers:
    rows: list[tuple[int, str, int, int, int]] = []
    frozen: dict[str, None] = {}
    complete, split, position = True, False, 0
    partitioned = world_size() > 1 and "deepspeed" in sys.modules  # its optimizers step parts of copies of the weights
    seen: set[int] = set()
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            name = owners.get(id(parameter), f"{before}parameter_{position}")
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
    """Not what is split over processes (DTensor, FSDP's flat parameters), nor what has no values yet."""
    return not is_split(parameter) and not is_lazy(parameter) and parameter.is_floating_point()
