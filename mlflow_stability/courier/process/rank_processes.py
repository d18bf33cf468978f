"""Notices which process of a training ends first.

In: the page on which the training names the processes of its ranks. Out: when each of them ended. Guarantees: a thread
waits for their ends, so that the order is right also where a launcher ends the others a moment later; only processes of
this machine are watched, and only where the system can tell of an end (Linux).
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from mlflow_stability.journal.layout import RankProcess, ranks_of_session
from mlflow_stability.journal.process_identity import ProcessStatus, life_of


@dataclass(frozen=True, slots=True)
class RankEnd:
    """A process that ended before rank 0."""

    name: str
    """Its rank and its host."""
    time: float
    before: float
    """How many seconds before rank 0 ended; 0 where that one still lived."""


class RankProcesses:
    """The processes of the training that one session records."""

    def __init__(self, session: Path) -> None:
        self._session = session
        self._ended: dict[int, float] = {}
        """When each ended, by its index among them; the first one records."""
        self._ranks: list[RankProcess] = []
        self._lock = threading.Lock()

    def look(self) -> None:
        """Begin to wait for their ends, as soon as the training has named them."""
        if self._ranks:
            return
        self._ranks = ranks_of_session(self._session)
        descriptors = {}
        for index, each in enumerate(self._ranks):
            with contextlib.suppress(OSError, AttributeError):  # gone already, or a system without them
                descriptors[os.pidfd_open(each.identity.pid)] = index
                if life_of(each.identity) is not ProcessStatus.LIVES:  # another process has its pid by now, or here
                    os.close(descriptors.popitem()[0])
        if descriptors:
            threading.Thread(target=self._wait, args=(descriptors,), name="ranks", daemon=True).start()

    def first_end(self) -> list[RankEnd]:
        """Those that ended first, where rank 0 did not; several where no order can be told."""
        with self._lock:
            ended = dict(self._ended)
        if not ended or min(ended.values()) >= ended.get(0, float("inf")):
            return []
        first = min(ended.values())
        before = ended[0] - first if 0 in ended else 0.0
        return [RankEnd(self._ranks[at].name, first, before) for at, when in sorted(ended.items()) if when == first]

    def _wait(self, descriptors: dict[int, int]) -> None:
        poller = select.poll()
        for each in descriptors:
            poller.register(each, select.POLLIN)
        while descriptors:
            gone = [descriptor for descriptor, _ in poller.poll()]
            now = time.time()
            for each in gone:
                poller.unregister(each)
                with self._lock:
                    self._ended[descriptors.pop(each)] = now
                os.close(each)
