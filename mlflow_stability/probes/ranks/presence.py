"""Finds out whether all processes of a training are watched, before they exchange anything.

In: the ranks of a training. Out: whether all of them take part. Guarantees: a script that watches some ranks only, the
first one say, waits half a second once, at its first step; all that take part come to the same answer.

A process announces itself in the store by which torch brought the processes together. The first rank decides for all.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import count
from typing import Any

import torch

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.ranks.own_group import attempt

PRESENT_SECONDS = 0.5
"""For how long to look for the others: where all are watched they have announced themselves before their first step."""
VERDICT_SECONDS = 30.0
"""For how long to wait for the first rank, which is at its first step as well."""
_meetings: defaultdict[str, count[int]] = defaultdict(count)
"""How often processes met for each purpose: what an earlier session of this process announced is still in the store."""


class Presence:
    """This process among those that are watched, for one purpose."""

    def __init__(self, purpose: str) -> None:
        self._purpose = purpose
        self._announced = ""

    def announce(self) -> None:
        """Say that this process is watched; more than once does no harm."""
        distributed = torch.distributed
        if self._announced or not distributed.is_available() or not distributed.is_initialized():
            return
        self._announced = f"mlflow_stability/{attempt()}/{self._purpose}/{next(_meetings[self._purpose])}"
        torch_api.default_store().set(self._key(distributed.get_rank()), "1")

    def all_here(self, ranks: Sequence[int]) -> bool:
        """Whether all of these are watched."""
        self.announce()
        store, mine, first = torch_api.default_store(), torch.distributed.get_rank(), ranks[0]
        verdict = f"{self._announced}/of/{'-'.join(map(str, ranks))}"
        if mine == first:
            here = _soon(lambda: store.check([self._key(each) for each in ranks]))
            store.set(verdict, "all" if here else "some")
            return here
        if not _soon(lambda: store.check([self._key(first)])):
            store.delete_key(self._key(mine))
            return False
        store.wait([verdict], timedelta(seconds=VERDICT_SECONDS))
        found: Any = store.get(verdict)
        return bytes(found) == b"all"

    def forget(self) -> None:
        """The training is over; another one is another meeting."""
        self._announced = ""

    def _key(self, rank: int) -> str:
        return f"{self._announced}/{rank}"


def _soon(condition: Callable[[], bool]) -> bool:
    """Whether it holds within half a second."""
    until = time.monotonic() + PRESENT_SECONDS
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True
