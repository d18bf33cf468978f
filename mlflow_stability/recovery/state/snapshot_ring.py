"""Keeps a few states in memory to go back to, and trusts none before it has proved itself.

In: copies, and whether the steps after them were healthy. Out: a good state from before the trouble. Guarantees: a
state is good only when all of it is finite and enough healthy steps have followed; what is not good never pushes a good
one out; all together stay within the budget, and making them within a share of the training's time.

One place of the ring is for the newest, which has yet to prove itself. It becomes good, and only then the oldest good
one leaves; or trouble comes first, and it is dropped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from mlflow_stability.recovery.rollback_policy import RollbackPolicy
from mlflow_stability.recovery.state.host_copy import free_memory
from mlflow_stability.recovery.state.state_copy import StateCopy


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state in memory, and the loss that belongs to it."""

    copy: StateCopy
    loss: float

    @property
    def step(self) -> int:
        """The step after which it was taken."""
        return self.copy.step


class SnapshotRing:
    """The states in memory of one training."""

    def __init__(
        self, policy: RollbackPolicy, clock: Callable[[], float] = time.perf_counter, ranks_here: int = 1
    ) -> None:
        self._policy = policy
        self._ranks_here = ranks_here
        """How many processes of the training share this machine's memory."""
        self._clock = clock
        self._good: list[Snapshot] = []
        self._waiting: Snapshot | None = None
        self._first: Snapshot | None = None
        self.initial_step: int | None = None
        """The step of the state from before the first step, which is good if it is finite; it is the first to leave."""
        self._began = clock()
        self._cost = 0.0
        self._last_step: int | None = None
        self._budget = policy.snapshot_budget
        self._usual: frozenset[str] | None = None
        self.places = policy.snapshots
        """How many states fit the budget, as far as their size is known."""

    @property
    def good(self) -> tuple[Snapshot, ...]:
        """The states that can be gone back to, oldest first."""
        self._admit_initial()
        return tuple(self._good)

    @property
    def next_change(self) -> int:
        """The first step after which a healthy step makes a state good, or a state may be due."""
        if self._first is not None:
            return 0
        if self._waiting is not None:
            return self._waiting.step + self._policy.healthy_after
        return 0 if self._last_step is None else self._last_step + self._policy.snapshot_every

    def is_due(self, step: int, nbytes: int) -> bool:
        """Whether a state of this size should be taken after this step."""
        self.places = min(self._policy.snapshots, self._known_budget() // max(nbytes, 1))
        if self.places < 2 or self._waiting is not None:
            return False
        if self._last_step is None:
            return True
        if step - self._last_step < self._policy.snapshot_every:
            return False
        return self._cost <= self._policy.snapshot_share * (self._clock() - self._began)

    def has_room_for_initial(self, nbytes: int) -> bool:
        """Whether the state from before the first step fits the budget; none of an optimizer may be in it yet."""
        return nbytes <= self._known_budget()

    def add_initial(self, copy: StateCopy) -> None:
        """Take in the state from before the first step: what it leads to is seen only if it is gone back to."""
        self._first = Snapshot(copy, math.nan)

    def add(self, copy: StateCopy, loss: float) -> None:
        """Take the newest state in; it has to prove itself."""
        self._last_step = copy.step
        self._waiting = Snapshot(copy, loss)

    def healthy(self, step: int) -> Snapshot | None:
        """Runs after a healthy step; gives the state that has become good by it."""
        if self._first is not None:
            self._admit_initial()
        waiting = self._waiting
        if waiting is None or step - waiting.step < self._policy.healthy_after:
            return None
        self._settle()
        if not self.is_finite(waiting.copy):
            return None
        self._good.append(waiting)
        del self._good[: max(0, len(self._good) - self.places + 1)]
        return waiting

    def trouble(self) -> None:
        """Runs after a step that was not healthy: the newest state may carry what led to it."""
        self._settle()

    def is_finite(self, copy: StateCopy) -> bool:
        """Whether a state is finite, but for the masks: infinities that were in it from the beginning."""
        if self._usual is None:
            self._usual = copy.infinite_masks()
        return copy.not_finite() <= self._usual

    def rolled_back(self, step: int) -> None:
        """Runs after a return to the state of this step: those after it led to trouble."""
        self._settle()
        self._good = [each for each in self._good if each.step <= step]

    def adapt(self, adapted: Callable[[StateCopy], StateCopy | None]) -> None:
        """The training has changed: keep the states as they fit it, and forget those that do not (None)."""

        def kept(snapshot: Snapshot | None) -> Snapshot | None:
            copy = None if snapshot is None else adapted(snapshot.copy)
            return None if snapshot is None or copy is None else Snapshot(copy, snapshot.loss)

        self._waiting, self._first = kept(self._waiting), kept(self._first)
        self._good = [each for snapshot in self._good if (each := kept(snapshot)) is not None]

    def drop(self, step: int) -> None:
        """The state of this step is of no use."""
        self._good = [each for each in self._good if each.step != step]

    def keep_only(self, step: int) -> None:
        """Memory is short: the state of this step is the last to leave."""
        self._settle()
        self._good = [each for each in self._good if each.step == step]

    def clear(self) -> None:
        """Forget all: it is another training from here on."""
        self._good, self._waiting, self._last_step, self._usual = [], None, None, None
        self._first = self.initial_step = None

    def _known_budget(self) -> int:
        if self._budget is None:
            self._budget = free_memory() // (4 * self._ranks_here)
        return self._budget

    def _admit_initial(self) -> None:
        """The state from before the first step is good if it is finite."""
        first, self._first = self._first, None
        if first is not None:
            self._cost += first.copy.seconds()
            if self.is_finite(first.copy):
                self._good.insert(0, first)
                self.initial_step = first.step

    def _settle(self) -> None:
        """The newest waits no longer, and by now its cost is known on a device too."""
        if self._waiting is not None:
            self._cost += self._waiting.copy.seconds()
            self._waiting = None
