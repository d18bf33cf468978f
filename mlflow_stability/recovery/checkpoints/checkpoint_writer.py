"""Checkpoint writer thread, and when a checkpoint is due.

Guarantees: training never waits for the disk; one checkpoint at a time is written or awaits healthy steps, and at most
one waits behind it, the newest of the best states; an error becomes a finding; a forked child writes nothing;
non-finite states are not written.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable

from mlflow_stability.kinds.reported.autopilot import CheckpointFailedFacts, CheckpointNotFiniteFacts
from mlflow_stability.recovery.checkpoints.checkpoint_store import CheckpointStore, RankStore
from mlflow_stability.recovery.state.state_copy import StateCopy
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy


class CheckpointWriter:
    def __init__(self, store: CheckpointStore | RankStore, is_finite: Callable[[StateCopy], bool]) -> None:
        self._store = store
        self._disk = store.store if isinstance(store, RankStore) else store  # None on other ranks
        self._is_finite = is_finite
        self._pid = os.getpid()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._findings: queue.SimpleQueue[Finding] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self.writing: int | None = None  # step of the state that is being written: it must not be changed meanwhile
        self._next: tuple[StateCopy, float, float | None] | None = None  # the state that is written after it
        self._taking = threading.Lock()  # held while `_next` becomes `writing`
        self._thread: threading.Thread | None = None
        self._newest = 0  # step of the newest checkpoint written

    @property
    def is_busy(self) -> bool:
        return not self._idle.is_set()

    def submit(self, copy: StateCopy, loss: float, value: float | None = None) -> bool:
        """Queue a state; False while another is being written.

        In a sharded checkpoint every rank writes: rank 0 has checked that none is being written.
        """
        if os.getpid() != self._pid or (self.is_busy and not isinstance(self._store, RankStore)):
            return False
        self._idle.clear()
        self.writing = copy.step
        self._enqueue(lambda: self._write(copy, loss, value))
        return True

    def submit_next(self, copy: StateCopy, loss: float, value: float | None) -> bool:
        """Queue a state behind the one that is being written, in place of another that waits."""
        if self.submit(copy, loss, value):
            return True
        if os.getpid() != self._pid:
            return False
        with self._taking:
            waited, self._next = self._next is not None, (copy, loss, value)
            self._idle.clear()
        if not waited:
            self._enqueue(self._write_next)
        return True

    def holds(self, step: int) -> bool:
        """Whether the state of this step is being written or waits for it: it must not be changed meanwhile."""
        with self._taking:
            return self.writing == step or (self._next is not None and self._next[0].step == step)

    def set_value(self, step: int, value: float) -> None:
        self._change(step, lambda disk: disk.set_value(step, value))

    def promote(self, step: int) -> None:
        self._change(step, lambda disk: disk.promote(step))

    def reject(self, step: int) -> None:
        self._change(step, lambda disk: disk.reject(step))

    def _change(self, step: int, change: Callable[[CheckpointStore], None]) -> None:
        disk = self._disk
        if disk is not None:
            self._enqueue(lambda: self._reporting_errors(step, lambda: change(disk)))

    def events(self) -> list[Finding]:
        findings = []
        while not self._findings.empty():
            findings.append(self._findings.get())
        return findings

    def drain(self, seconds: float) -> bool:
        """Wait until everything is written; False if it takes longer."""
        if self._thread is None or os.getpid() != self._pid:
            return True
        done = threading.Event()
        self._enqueue(done.set)
        return done.wait(seconds)

    def close(self, seconds: float) -> bool:
        """Wait until everything is written, end the thread, and release the directory."""
        if os.getpid() != self._pid or not self.drain(seconds):
            return False
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(seconds)
        if self._disk is not None:
            self._disk.close()
        return True

    def _enqueue(self, job: Callable[[], None]) -> None:
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
            waiting, self._next = self._next, None
            self.writing = None if waiting is None else waiting[0].step
        if waiting is not None:
            self._write(*waiting)

    def _write(self, copy: StateCopy, loss: float, value: float | None) -> None:
        try:
            self._reporting_errors(copy.step, lambda: self._write_finite(copy, loss, value))
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
        self._report(copy.step, CheckpointNotFiniteFacts(len(names), names[0]))

    def _reporting_errors(self, step: int, body: Callable[[], None]) -> None:
        try:
            body()
        except Exception as error:
            named = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
            reason = getattr(error, "strerror", None) or f"{named}{error}"
            directory = None if self._disk is None else self._disk.directory
            facts = CheckpointFailedFacts(str(reason), str(directory), self._newest or None)
            self._report(step, facts, Remedy(Action.FREE_DISK_SPACE))

    def _report(self, step: int, facts: Facts, *remedies: Remedy) -> None:
        self._findings.put(Finding.at(facts, step, Severity.WARNING, remedies=remedies, time=time.time()))


class CheckpointCadence:
    """When checkpoints of one training are due, and when they count as good."""

    def __init__(self, policy: RollbackPolicy, writer: CheckpointWriter) -> None:
        self._policy = policy
        self._writer = writer
        self._last = 0
        self._waiting: list[int] = []  # steps of checkpoints that await healthy steps; several only with `best_by`

    @property
    def next_change(self) -> int:
        """First step after which a healthy step changes anything here."""
        if self._waiting:
            return self._waiting[0] + self._policy.healthy_after
        return self._last + self._policy.rollback_checkpoint_interval

    def is_due(self, step: int, wanted: bool = False) -> bool:
        """Whether a checkpoint is due after this step; `wanted`: the script asked for one."""
        if self._writer.is_busy:
            return False
        return wanted or (not self._waiting and step - self._last >= self._policy.rollback_checkpoint_interval)

    def has(self, step: int) -> bool:
        return step in self._waiting

    def take(self, copy: StateCopy, loss: float, value: float | None = None) -> bool:
        """Queue a checkpoint; False while another is being written."""
        submit = self._writer.submit if value is None else self._writer.submit_next
        if not submit(copy, loss, value):
            return False
        self._last = copy.step
        self._waiting.append(copy.step)
        return True

    def healthy(self, step: int) -> None:
        while self._waiting and step - self._waiting[0] >= self._policy.healthy_after:
            self._writer.promote(self._waiting.pop(0))

    def trouble(self, *, rejects: bool = True) -> None:
        """Drop the checkpoints that await healthy steps; `rejects`: delete them from disk as well."""
        while self._waiting:
            step = self._waiting.pop()
            if rejects:
                self._writer.reject(step)
