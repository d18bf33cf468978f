"""Tells which learning-rate schedules belong to which optimizers.

In: schedules and optimizers. Out: the outermost schedules of these optimizers. Promised: what accelerate has put around
an optimizer is seen through; a schedule inside a chain or a sequence is told by that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


def schedules_of(found: Iterable[LRScheduler], optimizers: Iterable[Optimizer]) -> list[LRScheduler]:
    """Those of these optimizers that are no part of another one."""
    known = {id(each) for each in optimizers}
    ours = [each for each in found if known & _driven(each)]
    inner = {id(child) for each in ours for child in parts_of_schedule(each)}
    return [each for each in ours if id(each) not in inner]


def parts_of_schedule(schedule: LRScheduler) -> Sequence[LRScheduler]:
    """What a chain or a sequence is made of."""
    return [each for each in vars(schedule).get("_schedulers", ()) if isinstance(each, LRScheduler)]


def _driven(schedule: LRScheduler) -> set[int]:
    """Its optimizer, and, where that is accelerate's, the one inside."""
    optimizer = vars(schedule).get("optimizer")
    inside = vars(optimizer).get("optimizer") if isinstance(optimizer, Optimizer) else None
    return {id(each) for each in (optimizer, inside) if each is not None}
