"""Brings the processes of one training to one mind, once a cycle: is the step broken, and what is done after it.

In: the flag of this process, and on the first one its orders. Out: the flag of all, and the orders of the first.
Promised: a group of our own on the host, so that no collective of the script meets ours; every process sends once a
cycle whatever it has found, also when its guard has failed, and then nobody guards any more.
"""

from __future__ import annotations

import torch
import torch.distributed
from torch import Tensor

from mlflow_stability.session.orders import FIELDS, Orders


class SharedVote:
    """The voice of this process."""

    def __init__(self) -> None:
        self._group = torch.distributed.new_group(backend="gloo")
        self._cycle: object = None
        self._numbers = [0.0] * FIELDS
        self._received: list[float] | None = None
        self.somebody_off = False
        """Whether the guard of a process has failed."""

    def begins(self, cycle: object) -> bool:
        """Whether this is the first gate of a cycle."""
        if cycle is self._cycle:
            return False
        self._cycle, self._received = cycle, None
        self._numbers = [0.0] * FIELDS
        return True

    def say(self, orders: Orders, step: int) -> None:
        """What the first process has to say with its next vote."""
        self._numbers = orders.as_numbers(step)

    def __call__(self, flag: Tensor) -> Tensor:
        """Exchange the flag, and with the first one of a cycle the orders."""
        if self.somebody_off:
            return flag
        return flag.new_full((), self._exchange(flag.item(), is_off=False))

    def heard(self, is_off: bool, step: int) -> Orders:
        """The orders of this cycle; sends now where nothing was asked about its gradients."""
        if self._received is None:
            self._exchange(0.0, is_off)
        return Orders.from_numbers(self._received or [0.0] * FIELDS, step)

    def all_have(self, done: bool) -> bool:
        """Whether every process says so."""
        row = torch.tensor([float(done)], dtype=torch.float64)
        torch.distributed.all_reduce(row, torch.distributed.ReduceOp.MIN, group=self._group)
        (least,) = row.tolist()
        return bool(least > 0)

    def leave(self) -> None:
        """Nobody votes any more: take the group down before the interpreter does, if the script has not yet."""
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group(self._group)

    def _exchange(self, flag: float, is_off: bool) -> float:
        first = self._received is None
        row = torch.tensor([flag, float(is_off), *(self._numbers if first else [0.0] * FIELDS)], dtype=torch.float64)
        torch.distributed.all_reduce(row, torch.distributed.ReduceOp.MAX, group=self._group)
        broken, somebody_off, *numbers = row.tolist()
        self.somebody_off = self.somebody_off or somebody_off > 0
        if first:
            self._received = numbers
        return float(broken)


def shared_vote() -> SharedVote | None:
    """A vote where several processes train together through torch.distributed; else None."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return SharedVote() if torch.distributed.get_world_size() > 1 else None
