"""Takes down in a cycle what the hooks saw: losses, norms before clipping, limits, learning rates, the loss scale.

In: a cycle and what a hook was called with. Out: scalars in the cycle, still on their device. Promised: what is taken
down is a copy where the script, or torch itself, may go on to change it in place.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from torch import Tensor
from torch.optim import Optimizer

from mlflow_stability.probes.cycle import Clip, Cycle

UnscaledLoss: TypeAlias = tuple[weakref.ref[Tensor], Tensor]
"""A scaled loss, and what it was before."""


class KnownOptimizer:
    """What does not change of an optimizer from step to step."""

    __slots__ = ("_group_place", "engine", "is_settled", "optimizer", "place", "rate_places", "track")

    def __init__(
        self, optimizer: Optimizer, track: int, place: str, group_place: Callable[[Optimizer, int], str]
    ) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.track = track
        self.place = place
        """Where the losses and norms of its track belong."""
        self.rate_places: list[str] = []
        """Where the learning rate of each group belongs."""
        self.is_settled = False
        """Whether backward passes are known to reach it, and it is known which engine steps it."""
        self.engine: weakref.ref[Any] | None = None
        self._group_place = group_place

    def learn_groups(self, optimizer: Optimizer, count: int) -> None:
        """A group was added."""
        self.rate_places = [self._group_place(optimizer, number) for number in range(count)]


def take_losses(cycle: Cycle, tensors: Any, unscaled: UnscaledLoss | None) -> None:
    """What was passed to backward, as it was before a loss scaler."""
    for tensor in (tensors,) if isinstance(tensors, Tensor) else tensors:
        if not isinstance(tensor, Tensor) or tensor.numel() != 1 or tensor.is_meta or hasattr(tensor, "full_tensor"):
            continue  # a vector passed on by hand, as pipelines do, is no loss
        loss = tensor.detach()
        if unscaled is not None and unscaled[0]() is tensor:
            loss = unscaled[1]
        elif cycle.scaler is not None:
            loss = loss / cycle.scaler._scale
        single = loss if not loss.ndim else loss.reshape(())
        cycle.losses.append(single.clone())  # a script may go on to change it in place


def take_clip(cycle: Cycle, gradients: Sequence[Tensor], order: Any, norm: Tensor) -> None:
    """A norm that the script took over gradients."""
    scale = cycle.scaler._scale.clone() if cycle.scaler is not None and not cycle.unscaled else None
    cycle.clips.append(Clip(norm.detach().clone(), float(order), frozenset(map(id, gradients)), scale))


def take_limit(cycle: Cycle, kind: str, limit: Any) -> None:
    """The limit at which the script clipped, where it is a plain number: none is fetched from a device."""
    if isinstance(limit, int | float) and math.isfinite(limit):  # with an infinite one a norm is only measured
        cycle.limits[kind] = float(limit)


def take_rates(cycle: Cycle, optimizer: Optimizer, known: KnownOptimizer) -> None:
    """The learning rate of each group."""
    groups = optimizer.param_groups
    if len(groups) != len(known.rate_places):
        known.learn_groups(optimizer, len(groups))
    for place, group in zip(known.rate_places, groups, strict=True):
        rate = group.get("lr")
        if rate is not None:
            cycle.learning_rates[place] = rate.detach().clone() if isinstance(rate, Tensor) else float(rate)


def take_scale(cycle: Cycle, optimizer: Optimizer) -> None:
    """The loss scale, and what the optimizer was told of it."""
    scaler = cycle.scaler
    if scaler is not None and scaler._scale is not None:
        cycle.loss_scale = scaler._scale.clone()  # `update` changes it in place
    found_inf = getattr(optimizer, "found_inf", None)
    if found_inf is not None:
        cycle.found_inf.append(found_inf.detach().clone())
