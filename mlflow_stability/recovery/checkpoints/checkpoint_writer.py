"""Checkpoint writer thread, and when a checkpoint is due.

In: copies on the host; steps, and whether they were healthy. Out: checkpoints on the disk, marked good or removed;
events where something failed. Guarantees: training never waits for the disk; one checkpoint at a time is being
written or awaits healthy steps, and none is due meanwhile; behind it at most one waits, the newest of the best states;
an error becomes an event; a forked child writes nothing; non-finite states are not written.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from mlflow_stability.kinds.reported.autopilot import CheckpointFailedFacts, CheckpointNotFiniteFacts
from mlflow_stability.recovery.checkpoints.checkpoint_store import CheckpointStore
from mlflow_stability.recovery.checkpoints.rank_store import RankStore
from mlflow_stability.recovery.rollback_policy import RollbackPolicy
from mlflow_stability.recovery.state.state_copy import StateCopy
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity

IsFinite = Callable[[StateCopy], bool]
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class _Draft:
    """A state that waits until it can be written."""

    copy: StateCopy
    loss: float
    value: float | None


class CheckpointWriter:
    """The hand that writes, and what it has to tell."""

    def __init__(self, store: CheckpointStore | RankStore, is_finite: IsFinite) -> None:
        self._store = store
        self._is_finite = is_finite
        self._pid = os.getpid()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._told: queue.SimpleQueue[Finding] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self.writing: int | None = None
        """The step of the state that is being written: it must not be changed meanwhile."""
        self._next: _Draft | None = None
        """What is written after that."""
        self._taking = threading.Lock()
        """Held while what waits becomes what is being written."""
        self._thread: threading.Thread | None = None
        self._newest = 0
        """The step of the newest checkpoint that was written."""

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is on its way to the disk."""
        return not self._idle.is_set()

    def submit(self, copy: StateCopy, loss: float, value: float | None = None) -> bool:
        """Have a state written; False while another is on its way.

        What several processes write together each of them writes, for the first one saw that nothing is on its way.
        """
        if os.getpid() != self._pid or (self.is_busy and not isinstance(self._store, RankStore)):
            return False
        self._idle.clear()
        self.writing = copy.step
        self._do(lambda: self._write(copy, loss, value))
        return True

    def submit_next(self, copy: StateCopy, loss: float, value: float | None) -> bool:
        """Have a state written now, or after the one that is on its way, in place of another one that waits."""
        if self.submit(copy, loss, value):
            return True
        if os.getpid() != self._pid:
            return False
        with self._taking:
            waited, self._next = self._next is not None, _Draft(copy, loss, value)
            self._idle.clear()
        if not waited:
            self._do(self._write_next)
        return True

    def holds(self, step: int) -> bool:
        """Whether the state of this step is being written, or waits to be: it must not be changed meanwhile."""
        with self._taking:
            return self.writing == step or (self._next is not None and self._next.copy.step == step)

    def set_value(self, step: int, value: float) -> None:
        """Have the metric of a checkpoint added, once it is written."""
        self._do(lambda: self._guarded(step, lambda: self._store.set_value(step, value)))

    def promote(self, step: int) -> None:
        """Have a checkpoint marked as good, once it is written."""
        self._do(lambda: self._guarded(step, lambda: self._store.promote(step)))

    def reject(self, step: int) -> None:
        """Have a checkpoint removed that has not proved itself."""
        self._do(lambda: self._guarded(step, lambda: self._store.reject(step)))

    def events(self) -> list[Finding]:
        """What happened since this was asked last."""
        return _taken(self._told)

    def drain(self, seconds: float) -> bool:
        """Wait until all is written; False if it takes longer."""
        if self._thread is None or os.getpid() != self._pid:
            return True
        done = threading.Event()
        self._do(done.set)
        return done.wait(seconds)

    def close(self, seconds: float) -> bool:
        """Wait likewise, and end the thread; the directory is left to the run's next process."""
        if os.getpid() != self._pid or not self.drain(seconds):
            return False
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(seconds)
        self._store.close()
        return True

    def _do(self, job: Callable[[], None]) -> None:
        if os.getpid() != self._pid:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="mlflow-stability-checkpoints", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _write_next(self) -> None:
        with self._taking:
            draft, self._next = self._next, None
            self.writing = None if draft is None else draft.copy.step
        if draft is not None:
            self._write(draft.copy, draft.loss, draft.value)

    def _write(self, copy: StateCopy, loss: float, value: float | None) -> None:
        try:
            self._guarded(copy.step, lambda: self._write_finite(copy, loss, value))
        finally:
            with self._taking:
                self.writing = None
                if self._next is None:
                    self._idle.set()

    def _write_finite(self, copy: StateCopy, loss: float, value: float | None) -> None:
        finite = self._is_finite(copy)
        if isinstance(self._store, RankStore):
            if self._store.commit(copy, loss, value, finite) is not None:
                self._newest = copy.step
            if finite:
                return
        elif finite:
            self._store.commit(copy, loss, value)
            self._newest = copy.step
            return
        names = sorted(copy.not_finite())
        self._tell(copy.step, CheckpointNotFiniteFacts(len(names), names[0]))

    def _guarded(self, step: int, body: Callable[[], None]) -> None:
        """Whatever goes wrong with a checkpoint is an event."""
        try:
            body()
        except Exception as error:
            named = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
            reason = getattr(error, "strerror", None) or f"{named}{error}"
            facts = CheckpointFailedFacts(str(reason), str(self._store.directory), self._newest or None)
            self._tell(step, facts, Remedy(Action.FREE_DISK_SPACE))

    def _tell(self, step: int, facts: Facts, *remedies: Remedy) -> None:
        self._told.put(Finding.at(facts, step, Severity.WARNING, remedies=remedies, time=time.time()))


def _taken(box: queue.SimpleQueue[_Item]) -> list[_Item]:
    found = []
    while not box.empty():
        found.append(box.get())
    return found


class CheckpointCadence:
    """The rhythm of the checkpoints of one training."""

    def __init__(self, policy: RollbackPolicy, writer: CheckpointWriter) -> None:
        self._policy = policy
        self._writer = writer
        self._last = 0
        self._waiting: list[int] = []
        """The steps of those that have yet to prove themselves; several only where the best ones are asked for."""

    @property
    def next_change(self) -> int:
        """The first step after which a healthy step makes a checkpoint good, or one may be due."""
        if self._waiting:
            return self._waiting[0] + self._policy.healthy_after
        return self._last + self._policy.checkpoint_every

    def is_due(self, step: int, wanted: bool = False) -> bool:
        """Whether a checkpoint should be taken after this step; `wanted`: one that was asked for is to be taken."""
        if self._writer.is_busy:
            return False
        return wanted or (not self._waiting and step - self._last >= self._policy.checkpoint_every)

    def has(self, step: int) -> bool:
        """Whether the state of this step is written, or being written, and has yet to prove itself."""
        return step in self._waiting

    def take(self, copy: StateCopy, loss: float, value: float | None = None) -> bool:
        """Have it written; False while the one before is still on its way, but for one of the best."""
        submit = self._writer.submit if value is None else self._writer.submit_next
        if not submit(copy, loss, value):
            return False
        self._last = copy.step
        self._waiting.append(copy.step)
        return True

    def healthy(self, step: int) -> None:
        """Runs after a healthy step."""
        while self._waiting and step - self._waiting[0] >= self._policy.healthy_after:
            self._writer.promote(self._waiting.pop(0))

    def trouble(self, *, rejects: bool = True) -> None:
        """Runs after a step that was not healthy: the newest checkpoint may carry what led to it.

        `rejects`: whether it is removed, or only not marked as good.
        """
        while self._waiting:
            step = self._waiting.pop()
            if rejects:
                self._writer.reject(step)
