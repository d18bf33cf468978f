"""Finds out whether all processes of a training are watched, before they exchange anything.

In: the ranks of a training. Out: whether all of them take part. Guarantees: a script that watches some ranks only, the
first one say, waits half a second once, at its first step; all that take part come to the same answer.

A process announces itself in the store by which torch brought the processes together, and says whether it has the
autopilot. The first rank decides for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from itertools import count

import torch

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.ranks.own_group import attempt

PRESENT_SECONDS = 0.5
"""For how long to look for the others: where all are watched they have announced themselves before their first step."""
VERDICT_SECONDS = 30.0
"""For how long to wait for the first rank, which is at its first step as well."""
_meetings = count()
"""How often processes met: what an earlier session of this process announced is still in the store."""


class Watched(Enum):
    """Which processes of a training are watched."""

    SOME = b"some"
    ALL = b"all"
    ALL_ACT = b"all act"
    """All, and each with the autopilot."""


class Presence:
    """This process among those that are watched."""

    def __init__(self, acts: bool) -> None:
        """`acts`: it has the autopilot."""
        self._acts = acts
        self._announced = ""
        self._found: dict[tuple[int, ...], Watched] = {}

    def announce(self) -> None:
        """Say that this process is watched; more than once does no harm."""
        distributed = torch.distributed
        if self._announced or not distributed.is_available() or not distributed.is_initialized():
            return
        self._announced = f"mlflow_stability/{attempt()}/{next(_meetings)}"
        mine = Watched.ALL_ACT if self._acts else Watched.ALL
        torch_api.default_store().set(self._key(distributed.get_rank()), mine.value)

    def of(self, ranks: tuple[int, ...], to_act: bool = False) -> Watched:
        """Which of these are watched; looked for once. `to_act`: nothing counts but whether all have the autopilot."""
        if ranks not in self._found:
            self.announce()
            found = self._looked_for(ranks, to_act)
            if found is None:
                return Watched.ALL
            self._found[ranks] = found
        return self._found[ranks]

    def forget(self) -> None:
        """The training is over; another one is another meeting."""
        self._announced = ""
        self._found.clear()

    def _looked_for(self, ranks: tuple[int, ...], to_act: bool) -> Watched | None:
        """As the first of them has found; None where it has no autopilot, and so may never look for those who act."""
        store, mine, first = torch_api.default_store(), torch.distributed.get_rank(), ranks[0]
        verdict = f"{self._announced}/of/{'-'.join(map(str, ranks))}"
        keys = [self._key(each) for each in ranks]
        if mine == first:
            found = Watched.SOME
            if _soon(lambda: store.check(keys)):
                announced = {bytes(store.get(key)) for key in keys}
                found = Watched.ALL_ACT if announced == {Watched.ALL_ACT.value} else Watched.ALL
            store.set(verdict, found.value)
            return found
        if not _soon(lambda: store.check([self._key(first)])):
            store.delete_key(self._key(mine))
            return Watched.SOME
        if to_act and bytes(store.get(self._key(first))) != Watched.ALL_ACT.value:
            return None
        store.wait([verdict], timedelta(seconds=VERDICT_SECONDS))
        return Watched(bytes(store.get(verdict)))

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
