"""Knows how many operations a training has done, from a few forward passes that were run again and counted.

In: forward passes of training as they begin. Out: their operations, forward and backward together. Promised: each new
shape of a batch is counted once, a few of them at most, by running that very batch again when its step is over; a
batch is held no longer than that. Shapes beyond are taken in proportion to the nearest one in size. A model that had
better not be run again is not, and `reason` says why.

A backward pass takes twice what the forward pass takes; where only a part of the parameters is trained, the half of it
that is for weights is counted for that part.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import Module

from mlflow_stability.probes.batch_shape import BatchShape, ShapeKey, shape_key, tensors_in
from mlflow_stability.probes.flop_count import count_flops
from mlflow_stability.probes.replay import hooks_muted, random_numbers_kept, run_again, unwrapped
from mlflow_stability.probes.replay_refusals import refusal

MOST_COUNTS = 4
"""So many shapes are counted; batches that are padded to the longest have a new one each time."""

_Key: TypeAlias = tuple[int, ShapeKey]


@dataclass(frozen=True, slots=True)
class _Held:
    """A forward pass that is to be run again."""

    root: Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    versions: tuple[int, ...]
    device: torch.device
    autocast: tuple[bool, torch.dtype]
    elements: int


@dataclass(frozen=True, slots=True)
class _Known:
    flops: float
    elements: int


class FlopBook:
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
        self._held: dict[_Key, _Held] = {}
        self._waiting: Counter[_Key] = Counter()
        """Forward passes since the last time that are not among `flops`."""

    @property
    def holds_batches(self) -> bool:
        """Whether there is something to run again when the step is over."""
        return bool(self._held)

    def forward_began(
        self, root: Module, args: tuple[Any, ...], kwargs: dict[str, Any], shape: BatchShape, may_hold: bool
    ) -> None:
        """Count a forward pass of training, or hold it to be counted."""
        if self.reason:
            return
        key = id(root), shape_key(args, kwargs)
        known = self._known.get(key)
        if known is not None:
            self.flops += known.flops
            return
        if len(self._known) + len(self._held) < MOST_COUNTS:
            self._waiting[key] += 1
            if may_hold and key not in self._held:
                self._held[key] = _hold(root, args, kwargs, shape)
            return
        near = [each for (model, _), each in self._known.items() if model == key[0] and each.elements]
        if near and shape.elements:
            nearest = min(near, key=lambda each: abs(each.elements - shape.elements))
            self.flops += nearest.flops * shape.elements / nearest.elements
        else:
            self._waiting[key] += 1

    def step_over(self) -> None:
        """Run what is held again, and let go of it."""
        held, self._held = self._held, {}
        for key, batch in held.items():
            inputs = list(tensors_in(batch.args, batch.kwargs))
            self.reason = self.reason or refusal(batch.root, inputs, batch.versions)
            if self.reason:
                return
            self._count(key, batch)

    def take(self) -> float | None:
        """Operations since the last time; None where not all of them are known."""
        flops, self.flops = self.flops, 0.0
        complete = not self._waiting
        self._waiting.clear()
        return flops if complete and flops and not self.reason else None

    def _count(self, key: _Key, batch: _Held) -> None:
        model = unwrapped(batch.root)
        again = partial(run_again, model, batch.args, batch.kwargs, batch.device.type, batch.autocast)
        devices = {each.device for each in model.parameters()} | {batch.device}
        with random_numbers_kept(devices), hooks_muted(model), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whatever the model has to say, it has said before
            try:
                count = count_flops(again)
            except Exception as error:
                self.reason = f"running a batch again failed ({type(error).__name__}: {error})"[:300]
                return
        if not count.flops:
            self.reason = "no operation with a known formula was seen"
            return
        self.unknown = tuple(dict.fromkeys((*self.unknown, *count.unknown)))
        known = self._known[key] = _Known(count.flops * (2 + trained_share(model)), batch.elements)
        self.flops += known.flops * self._waiting.pop(key, 0)
        self.device = batch.device
        self.dtype = batch.autocast[1] if batch.autocast[0] else main_dtype(model)


def trained_share(model: Module) -> float:
    """Which share of the parameters is trained."""
    sizes = [(each.numel(), each.requires_grad) for each in model.parameters()]
    total = sum(size for size, _ in sizes)
    return sum(size for size, trained in sizes if trained) / total if total else 0.0


def main_dtype(model: Module) -> torch.dtype:
    """The type that most of the parameters have."""
    sizes: dict[torch.dtype, int] = {}
    for each in model.parameters():
        sizes[each.dtype] = sizes.get(each.dtype, 0) + each.numel()
    return max(sizes, key=lambda dtype: sizes[dtype], default=torch.float32)


def _hold(root: Module, args: tuple[Any, ...], kwargs: dict[str, Any], shape: BatchShape) -> _Held:
    device = next((each.device for each in root.parameters()), torch.device("cpu"))
    autocast = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
    versions = tuple(map(_version, tensors_in(args, kwargs)))
    return _Held(root, args, kwargs, versions, device, autocast, shape.elements)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
