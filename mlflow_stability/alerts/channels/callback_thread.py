"""Calls the user's functions with alerts, in the training process, on one daemon thread.

In: events and readings, from the thread that trains. Out: calls of functions with an `AlertMessage`. Guarantees: the
training never waits: what finds the queue full is dropped and counted; an exception of a function is reported once and
ends nothing.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from mlflow_stability.alerts.alert import Alert
from mlflow_stability.alerts.message import AlertMessage, RunLink
from mlflow_stability.alerts.router import AlertRouter
from mlflow_stability.vocabulary.measured.observation import StepReading
from mlflow_stability.vocabulary.result.event import Event

MOST_WAITING = 1000
_LOOK_EVERY = 0.25


class _Callee:
    """One function, with its rules."""

    def __init__(self, alert: Alert) -> None:
        self.name = alert.service
        self.function: Callable[[AlertMessage], object] = alert.to  # type: ignore[assignment]
        self.router = AlertRouter(alert.rules, alert.severity, alert.cooldown)
        self.failed = False


class CallbackAlerts:
    """The functions among the alerts of a session."""

    def __init__(self, alerts: Sequence[Alert], run: Callable[[], RunLink | None], warn: Callable[..., None]) -> None:
        self._callees = [_Callee(each) for each in alerts if each.in_training]
        self._looks_at_steps = any(each.router.looks_at_steps for each in self._callees)
        self._run = run
        self._warn = warn
        self._queue: queue.Queue[Event | StepReading | None] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._pid = 0
        self.dropped = 0
        """Events and readings that found the queue full."""

    def tell(self, event: Event) -> None:
        """Pass an event on; never waits."""
        if self._callees:
            self._put(event)

    def see(self, reading: StepReading | None) -> None:
        """Pass what was measured on, if a condition asks for it; never waits."""
        if self._looks_at_steps and reading is not None:
            self._put(reading)

    def close(self, seconds: float) -> None:
        """Send what waits, for at most so many seconds."""
        thread, self._thread = self._thread, None
        if thread is not None and self._pid == os.getpid():
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                try:
                    self._queue.put_nowait(None)
                    break
                except queue.Full:
                    time.sleep(0.01)
            thread.join(max(0.0, until - time.monotonic()))

    def _put(self, what: Event | StepReading) -> None:
        if self._thread is None or self._pid != os.getpid():  # a fork has the queue, but not the thread
            self._pid = os.getpid()
            self._queue = queue.Queue(MOST_WAITING)
            self._thread = threading.Thread(
                target=self._work, args=(self._queue,), name="mlflow-stability alerts", daemon=True
            )
            self._thread.start()
        try:
            self._queue.put_nowait(what)
        except queue.Full:
            self.dropped += 1

    def _work(self, waiting: queue.Queue[Event | StepReading | None]) -> None:
        over = False
        while not over:
            taken: list[Event | StepReading] = []
            try:
                what = waiting.get(timeout=_LOOK_EVERY)
                over = what is None
                taken += [] if what is None else [what]
            except queue.Empty:
                over = False
            now = time.time()
            for each in self._callees:
                for one in taken:
                    if isinstance(one, Event):
                        each.router.take(one, now)
                    else:
                        each.router.step(one, now)
                messages = each.router.due(now, over=over)
                if messages:
                    run = self._run()
                    self._call(each, [replace(message, run=run) for message in messages])

    def _call(self, callee: _Callee, messages: Sequence[AlertMessage]) -> None:
        for message in messages:
            try:
                callee.function(message)
            except Exception as error:  # the user's own code, on a thread of ours
                if not callee.failed:
                    callee.failed = True
                    self._warn(
                        "The alert function %s raised %s: %s. Training continues; it is called for later alerts, and "
                        "further errors are not reported.",
                        callee.name,
                        type(error).__name__,
                        error,
                    )
