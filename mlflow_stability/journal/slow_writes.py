"""Tells whether writes of the journal hold up the training, as on a slow network file system.

In: how long slow writes took, and how many writes there were. Out: once, how long the slow ones took, and their share
of the time. Guarantees: a write that is slow now and then says nothing, as where a disk empties its cache; nor does a
write that waits for a busy thread of the script.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

SLOW_SECONDS = 0.002
"""From here on a write is slow: on a local disk it takes 10 us."""
SHARE = 0.05
"""From this share of the time on, slow writes are told of."""
WRITES = 20
"""Of so many writes at least, half must be slow."""


@dataclass(frozen=True, slots=True)
class SlowWrites:
    """What slow writes cost."""

    seconds: float
    """Of one of them, on average."""
    share: float
    """Of all together, in the time that passed meanwhile."""


class WriteTimes:
    """The slow writes of one journal."""

    def __init__(self) -> None:
        self._told = False
        self._begin(0)

    def add_slow(self, seconds: float) -> None:
        """A write took so long, `SLOW_SECONDS` or more."""
        self._slow += 1
        self._seconds += seconds

    def found(self, writes: int) -> SlowWrites | None:
        """What slow writes cost, the first time that it is much; to be asked now and then.

        `writes`: how many there were since the journal began.
        """
        since = writes - self._writes
        if self._told or since < WRITES:
            return None
        passed = time.perf_counter() - self._began
        often, much = 2 * self._slow >= since, self._seconds >= SHARE * passed
        found = SlowWrites(self._seconds / self._slow, self._seconds / passed) if often and much else None
        self._begin(writes)
        if found is None or _pause() >= found.seconds / 2:
            return None
        self._told = True
        return found

    def _begin(self, writes: int) -> None:
        self._writes, self._slow, self._seconds = writes, 0, 0.0
        self._began = time.perf_counter()


def _pause() -> float:
    """How long a pause of 0.1 ms takes: longer where another thread has Python's lock after it, or the processor.

    The longest of several: such a thread need not be there at each of them, and slow writes are asked for again.
    """
    took = []
    for _ in range(5):
        began = time.perf_counter()
        time.sleep(1e-4)
        took.append(time.perf_counter() - began)
    return max(took)
