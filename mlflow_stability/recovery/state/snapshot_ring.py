"""A ring of states in memory for rollbacks.

Guarantees: a state is good only if it is finite and enough healthy steps have followed; a state that is not good never
displaces a good one; all together stay within the memory budget, and copying within a share of the training's time. One
place of the ring is for the newest state: it becomes good, and then the oldest good one leaves; or trouble comes first,
and it is dropped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from mlflow_stability.recovery.state.host_copy import free_memory
from mlflow_stability.recovery.state.state_copy import StateCopy
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy


@dataclass(frozen=True, slots=True)
class Snapshot:
    copy: StateCopy
    loss: float

    @property
    def step(self) -> int:
        return self.copy.step


class SnapshotRing:
    def __init__(
        self, policy: RollbackPolicy, clock: Callable[[], float] = time.perf_counter, ranks_here: int = 1
    ) -> None:
        self._policy = policy
        self._ranks_here = ranks_here  # number of ranks that share this machine's memory
        self._clock = clock
        self._good: list[Snapshot] = []
        self._waiting: Snapshot | None = None
        self._first: Snapshot | None = None
        self.initial_step: int | None = None  # step of the state from before an optimizer's first step
        self._began = clock()
        self._cost = 0.0
        self._last_step: int | None = None
        self._budget = policy.snapshot_budget
        self._usual: frozenset[str] | None = None
        self.places = policy.snapshots  # number of states that fit the budget, as far as their size is known

    @property
    def good(self) -> tuple[Snapshot, ...]:
        """Return the states that can be restored, oldest first."""
        self._admit_initial()
        return tuple(self._good)

    @property
    def next_change(self) -> int:
        """First step after which a healthy step changes anything here."""
        if self._first is not None:
            return 0
        if self._waiting is not None:
            return self._waiting.step + self._policy.healthy_after
        return 0 if self._last_step is None else self._last_step + self._policy.snapshot_every

    def is_due(self, step: int, nbytes: int) -> bool:
        self.places = min(self._policy.snapshots, self._known_budget() // max(nbytes, 1))
        if self.places < 2 or self._waiting is not None:
            return False
        if self._last_step is None:
            return True
        if step - self._last_step < self._policy.snapshot_every:
            return False
        return self.is_affordable()

    def is_affordable(self) -> bool:
        """Whether copies have taken no more than their share of the time."""
        return self._cost <= self._policy.snapshot_share * (self._clock() - self._began)

    def has_room_for_initial(self, nbytes: int) -> bool:
        return nbytes <= self._known_budget()

    def add_initial(self, copy: StateCopy) -> None:
        """Add the state from before the first step of an optimizer; it has nothing to prove."""
        self._admit_initial()
        self._first = Snapshot(copy, math.nan)

    def add(self, copy: StateCopy, loss: float) -> None:
        """Add the newest state, which awaits healthy steps."""
        self._last_step = copy.step
        self._waiting = Snapshot(copy, loss)

    def healthy(self, step: int) -> None:
        """Note a healthy step, by which the newest state may become good."""
        if self._first is not None:
            self._admit_initial()
        waiting = self._waiting
        if waiting is None or step - waiting.step < self._policy.healthy_after:
            return
        self._settle()
        if self.is_finite(waiting.copy):
            self._keep(waiting)
            del self._good[: max(0, len(self._good) - self.places + 1)]

    def trouble(self) -> None:
        """Drop the newest state: it may carry the cause."""
        self._settle()

    def is_finite(self, copy: StateCopy) -> bool:
        """Whether a state is finite, except for masks that held infinities from the start."""
        if self._usual is None:
            self._usual = copy.infinite_masks()
        return copy.not_finite() <= self._usual

    def rolled_back(self, step: int) -> None:
        self._settle()
        self._good = [snapshot for snapshot in self._good if snapshot.step <= step]

    def adapt(self, adapted: Callable[[StateCopy], StateCopy | None]) -> None:
        """Convert all states to a changed training; those for which `adapted` returns None are dropped."""

        def kept(snapshot: Snapshot | None) -> Snapshot | None:
            copy = None if snapshot is None else adapted(snapshot.copy)
            return None if snapshot is None or copy is None else Snapshot(copy, snapshot.loss)

        self._waiting, self._first = kept(self._waiting), kept(self._first)
        self._good = [adapted_snapshot for snapshot in self._good if (adapted_snapshot := kept(snapshot)) is not None]

    def drop(self, step: int) -> None:
        self._good = [snapshot for snapshot in self._good if snapshot.step != step]

    def keep_only(self, step: int) -> None:
        """Free memory: keep only the state of this step."""
        self._settle()
        self._good = [snapshot for snapshot in self._good if snapshot.step == step]

    def clear(self) -> None:
        self._good, self._waiting, self._last_step, self._usual = [], None, None, None
        self._first = self.initial_step = None

    def _known_budget(self) -> int:
        if self._budget is None:
            self._budget = free_memory() // (4 * self._ranks_here)
        return self._budget

    def _admit_initial(self) -> None:
        first, self._first = self._first, None
        if first is not None:
            self._cost += first.copy.seconds()
            if self.is_finite(first.copy):
                self._keep(first)
                self.initial_step = first.step

    def _keep(self, snapshot: Snapshot) -> None:
        self._good = sorted([*self._good, snapshot], key=attrgetter("step"))

    def _settle(self) -> None:
        """Drop the waiting state, whose cost is known on a device by now."""
        if self._waiting is not None:
            self._cost += self._waiting.copy.seconds()
            self._waiting = None
