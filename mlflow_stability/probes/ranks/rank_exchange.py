"""Sums rows of numbers over the processes of a training, in the background.

In: one row of this process at a time, of a length that all know. Out: the sum of all rows, some time later. Guarantees:
a process group of its own on the host, apart from the script's collectives; nobody waits unless they say for how long;
where a process has died or does not answer, it is over and says why.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from mlflow_stability.probes.ranks.own_group import gloo_group
from mlflow_stability.probes.step.readback import values_on_host

ANSWER_SECONDS = 120.0
"""For how long a process may leave the others without an answer."""
LOST = "a process of this training has ended, or its connection is lost"


class RankExchange:
    """One row at a time."""

    def __init__(self, ranks: Sequence[int], introduction: Any = None) -> None:
        """`introduction`: what this process has the others know of it."""
        distributed = torch.distributed
        # It goes when the script destroys its groups, and not before: torch would give the next one its name.
        self._group = gloo_group(timedelta(seconds=ANSWER_SECONDS), ranks)
        self.rank = tuple(ranks).index(distributed.get_rank())
        """The place of this process among them."""
        self.size = len(ranks)
        met: list[Any] = [None] * len(ranks)
        distributed.all_gather_object(met, (socket.gethostname(), introduction), group=self._group)
        self.names = [f"rank {rank} ({host})" for rank, (host, _) in zip(ranks, met, strict=True)]
        """What each process is called: its rank and its host."""
        self.introductions = [each for _, each in met]
        """What each process has said of itself."""
        self.over = ""
        """Why nothing is exchanged any more; empty while all is well."""
        self._row: Tensor | None = None
        self._work: Any = None
        self._since = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether a row is on its way."""
        return self._work is not None

    def begin(self, row: Sequence[float]) -> None:
        """Send a row; the one before has come back."""
        self._row = torch.tensor(row, dtype=torch.float64)
        self._since = time.monotonic()
        try:
            self._work = torch.distributed.all_reduce(self._row, group=self._group, async_op=True)
        except (RuntimeError, ValueError):  # the script has taken the processes apart, or one has died
            self.end(LOST)

    def result(self, seconds: float = 0.0) -> list[float] | None:
        """The sum of all rows; None where it has not come within so many seconds, or never will."""
        work, row = self._work, self._row
        if work is None or row is None:
            return None
        if not work.is_completed():
            if seconds <= 0:
                if time.monotonic() - self._since > ANSWER_SECONDS:
                    self.end(f"a process did not answer for {ANSWER_SECONDS:g} s")
                return None
            give_up = time.monotonic() + seconds
            while not work.is_completed():
                if time.monotonic() > give_up:
                    return None
                time.sleep(0.0002)
        self._work = self._row = None
        try:
            work.wait()
        except RuntimeError:
            self.end(LOST)
            return None
        return values_on_host(row)

    def end(self, why: str) -> None:
        """Nothing is exchanged any more."""
        self.over = self.over or why
        self._work = self._row = None
