"""Sends alerts from the training process, on one daemon thread: to the user's functions, and those with `when=`.

In: events and readings, from the thread that trains. Out: calls of functions with an `AlertMessage`. Guarantees: the
training never waits, and does not wake the thread for what was measured: it looks by itself four times a second. What
finds no room is dropped and counted; an exception of a function is reported once and ends nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from mlflow_stability.alerts.alert import Alert
from mlflow_stability.alerts.channels.channel import Channel
from mlflow_stability.alerts.channels.open_channel import open_channel
from mlflow_stability.alerts.message import AlertMessage, RunLink
from mlflow_stability.alerts.router import AlertRouter
from mlflow_stability.alerts.step_condition import StepCondition
from mlflow_stability.vocabulary.measured import StepReading
from mlflow_stability.vocabulary.result import Finding

MOST_WAITING = 4000
_LOOK_EVERY = 0.25


class _Callee:
    """One function or address, with its rules."""

    def __init__(self, alert: Alert, warn: Callable[..., None]) -> None:
        self.name = alert.service
        self.router = AlertRouter(alert.rules, alert.severity, alert.cooldown)
        self.failed = False
        self._to, self._warn = alert.to, warn
        self._channel: Channel | None = None
        self._condition: StepCondition | None = None
        self._takes_events = alert.when is None or bool(alert.rules)
        if alert.when is not None:
            self._condition = StepCondition(alert.when, alert.severity, alert.message, warn)

    @property
    def looks_at_steps(self) -> bool:
        """Whether a condition asks for what is measured."""
        return self._condition is not None or self.router.looks_at_steps

    def take(self, told: Finding | StepReading, now: float) -> None:
        """Take in an event or what was measured at a step."""
        if isinstance(told, Finding):
            if self._takes_events:
                self.router.take(told, now)
            return
        self.router.step(told, now)
        met = None if self._condition is None else self._condition.met(told)
        if met is not None:
            self.router.add(met, now)

    def send(self, message: AlertMessage) -> None:
        """Call the function, or send to the address."""
        if callable(self._to):
            self._to(message)
            return
        if self._channel is None:
            self._channel = open_channel(self._to, "", lambda text: self._warn("%s", text))
        self._channel.send(message)


@dataclass(slots=True)
class _Waiting:
    """What the thread has not looked at yet."""

    told: deque[Finding | StepReading] = field(default_factory=deque)
    look: threading.Event = field(default_factory=threading.Event)
    over: bool = False
    """Whether nothing more comes."""


class CallbackAlerts:
    """The functions among the alerts of a session."""

    def __init__(self, alerts: Sequence[Alert], run: Callable[[], RunLink | None], warn: Callable[..., None]) -> None:
        self._callees = [_Callee(each, warn) for each in alerts if each.in_training]
        self.looks_at_steps = any(each.looks_at_steps for each in self._callees)
        """Whether a condition asks for what is measured."""
        self._run = run
        self._warn = warn
        self._waiting = _Waiting()
        self._thread: threading.Thread | None = None
        self._starts = threading.Lock()
        self._pid = os.getpid()
        self.dropped = 0
        """Events and readings that found no room."""

    def tell(self, event: Finding) -> None:
        """Pass an event on; never waits."""
        if self._callees:
            self._put(event)

    def see(self, reading: StepReading | None) -> None:
        """Pass what was measured on, if a condition asks for it; never waits."""
        if self.looks_at_steps and reading is not None:
            self._put(reading)

    def close(self, seconds: float) -> None:
        """Send what waits, for at most so many seconds."""
        thread, self._thread = self._thread, None
        if thread is not None and self._pid == os.getpid():
            self._waiting.over = True
            self._waiting.look.set()
            thread.join(seconds)

    def _put(self, what: Finding | StepReading) -> None:
        if self._thread is None or self._pid != os.getpid():
            self._start()
        if len(self._waiting.told) >= MOST_WAITING:
            self.dropped += 1
            return
        self._waiting.told.append(what)
        if isinstance(what, Finding):  # waking a thread at every step costs more than the step's measurement
            self._waiting.look.set()

    def _start(self) -> None:
        """Begin the thread, once, whichever threads find that there is none."""
        if self._pid != os.getpid():  # a fork has what waits, but not the thread, nor who held the lock
            self._thread, self._starts, self._pid = None, threading.Lock(), os.getpid()
        with self._starts:
            if self._thread is None:
                waiting = _Waiting()
                thread = threading.Thread(
                    target=self._work, args=(waiting,), name="mlflow-stability alerts", daemon=True
                )
                thread.start()
                self._waiting, self._thread = waiting, thread

    def _work(self, waiting: _Waiting) -> None:
        over = False
        while not over:
            waiting.look.wait(_LOOK_EVERY)
            waiting.look.clear()
            over = waiting.over
            taken = [waiting.told.popleft() for _ in range(len(waiting.told))]
            now = time.time()
            for each in self._callees:
                for one in taken:
                    each.take(one, now)
                messages = each.router.due(now, over=over)
                if messages:
                    run = self._run()
                    self._call(each, [replace(message, run=run) for message in messages])

    def _call(self, callee: _Callee, messages: Sequence[AlertMessage]) -> None:
        for message in messages:
            try:
                callee.send(message)
            except Exception as error:  # the user's own code, or a service that does not answer
                if not callee.failed:
                    callee.failed = True
                    self._warn(
                        "The alert function %s raised %s: %s. Training continues; it is called for later alerts, and "
                        "further errors are not reported.",
                        callee.name,
                        type(error).__name__,
                        error,
                    )
