"""Knows how many operations a training has done, from a few of its own forward passes in which they were counted.

In: forward passes of training as they begin and end. Out: their operations, forward and backward together. Guarantees:
nothing is run twice, and nothing is run in another way: the operations of a forward pass are counted as they go by,
once for each new shape of a batch, a few of them at most. Shapes beyond are taken in proportion to the nearest one in
size. What cannot be counted in passing is not counted, and `reason` says why.

A backward pass takes twice what the forward pass takes; where only a part of the parameters is trained, the half of it
that is for weights is counted for that part.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.nn import Module

from mlflow_stability.probes.objects.model_discovery import parameters_in
from mlflow_stability.probes.objects.module_names import unwrapped
from mlflow_stability.probes.performance.batch_shape import BatchShape, ShapeKey, shape_key
from mlflow_stability.probes.performance.flop_count import COMPILED, FlopCounter, refusal

MOST_COUNTS = 4
"""So many shapes are counted; batches that are padded to the longest have a new one each time."""

_Key: TypeAlias = tuple[int, ShapeKey]


@dataclass(frozen=True, slots=True)
class _Counting:
    """A forward pass that is being counted."""

    key: _Key
    root: Module
    counter: FlopCounter
    elements: int


@dataclass(frozen=True, slots=True)
class _Known:
    flops: float
    elements: int


class FlopTotals:
    """What is known of the models of one training."""

    def __init__(self) -> None:
        self.flops = 0.0
        """Operations since they were taken last."""
        self.reason = ""
        """Why operations are not counted; empty while they are."""
        self.unknown: tuple[str, ...] = ()
        """Kernels without a formula: with them the numbers are the least they can be."""
        self.device: torch.device | None = None
        self.dtype: torch.dtype | None = None
        """What the model computes in."""
        self._known: dict[_Key, _Known] = {}
        self._now: _Counting | None = None
        self.is_counting = False
        """Whether a forward pass is being counted now."""
        self._waiting: Counter[_Key] = Counter()
        """Forward passes since the last time that are not among `flops`."""

    def forward_began(
        self, root: Module, args: tuple[Any, ...], kwargs: dict[str, Any], shape: BatchShape, may_count: bool
    ) -> float | None:
        """Add a forward pass of training, or begin to count it.

        Gives what each one like it adds from now on; None where that is not settled.
        """
        if self.is_counting:
            self.give_up()
        if self.reason:
            return 0.0
        key = id(root), shape_key(args, kwargs)
        known = self._known.get(key)
        if known is not None:
            self.flops += known.flops
            return known.flops
        if len(self._known) < MOST_COUNTS:
            self._waiting[key] += 1
            if may_count:
                self._begin(key, root, shape)
            return None
        near = [each for (model, _), each in self._known.items() if model == key[0] and each.elements]
        if near and shape.elements:
            nearest = min(near, key=lambda each: abs(each.elements - shape.elements))
            self.flops += nearest.flops * shape.elements / nearest.elements
        else:
            self._waiting[key] += 1
        return None

    def forward_ended(self) -> None:
        """The forward pass is over: what was counted of it is what passes like it take."""
        now = self._now
        self.give_up()
        if now is None:
            return
        if now.counter.given_up:
            traced = now.counter.given_up == "traced"
            self.reason = "it is traced during a forward pass" if traced else COMPILED
            return
        if not now.counter.flops:
            self.reason = "no operation with a known FLOP formula was seen"
            return
        model = unwrapped(now.root)
        self.unknown = tuple(dict.fromkeys((*self.unknown, *now.counter.unknown)))
        known = self._known[now.key] = _Known(now.counter.flops * (2 + trained_share(model)), now.elements)
        self.flops += known.flops * self._waiting.pop(now.key, 0)

    def give_up(self) -> None:
        """A forward pass that never ended, as one that was interrupted, is not counted; nothing of ours is left."""
        if self._now is not None:
            self._now.counter.leave()
            self._now, self.is_counting = None, False

    def take(self) -> float | None:
        """Operations since the last time; None where not all of them are known."""
        flops, self.flops = self.flops, 0.0
        complete = not self._waiting
        self._waiting.clear()
        return flops if complete and flops and not self.reason else None

    def _begin(self, key: _Key, root: Module, shape: BatchShape) -> None:
        self.reason = refusal(root)
        if self.reason:
            return
        parameters = parameters_in(root)
        self.device = parameters[0].device if parameters else torch.device("cpu")
        autocast = torch.is_autocast_enabled(self.device.type)
        self.dtype = torch.get_autocast_dtype(self.device.type) if autocast else main_dtype(root)
        # Known before it begins: whatever happens then, Ctrl-C in between too, somebody ends it.
        self.is_counting = True
        self._now = _Counting(key, root, FlopCounter(), shape.elements)
        if not self._now.counter.enter():
            self.give_up()


def trained_share(model: Module) -> float:
    """Which share of the parameters is trained."""
    sizes = [(each.numel(), each.requires_grad) for each in parameters_in(model)]
    total = sum(size for size, _ in sizes)
    return sum(size for size, trained in sizes if trained) / total if total else 0.0


def main_dtype(model: Module) -> torch.dtype:
    """The type that most of the parameters have."""
    sizes: dict[torch.dtype, int] = {}
    for each in parameters_in(model):
        sizes[each.dtype] = sizes.get(each.dtype, 0) + each.numel()
    return max(sizes, key=lambda dtype: sizes[dtype], default=torch.float32)
