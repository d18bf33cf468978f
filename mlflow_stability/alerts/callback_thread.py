"""Send alerts from the training process, on a daemon thread: to the user's functions, and those with `when=`.

Guarantees: the training never waits. Readings do not wake the thread, which polls four times a second. What does not
fit into the queue is dropped; an exception of a user's function is reported once and ends nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mlflow_stability.alerts.alert import Alert
from mlflow_stability.alerts.channels import Channel, open_channel
from mlflow_stability.alerts.message import AlertMessage, RunLink
from mlflow_stability.alerts.router import AlertRouter
from mlflow_stability.alerts.run_metrics import hint_if_unknown
from mlflow_stability.vocabulary.measured.signal import StepReading
from mlflow_stability.vocabulary.result import Finding, Severity, Text

When = Callable[[Mapping[str, float]], object]


class StepCondition:
    """The condition of `Alert(when=...)`: a function of the newest value of each signal.

    It is not met while a signal that it reads was not measured yet, or does not exist.
    """

    def __init__(self, when: When, severity: Severity, message: str, warn: Callable[..., None]) -> None:
        self._when, self._severity, self._message, self._warn = when, severity, message, warn
        name = getattr(when, "__name__", type(when).__name__)
        self.kind = "condition" if name == "<lambda>" else name  # type of its events
        self._values: dict[str, float] = {}
        self._is_reported = False

    def met(self, reading: StepReading) -> Finding | None:
        values = self._values
        values.update({str(signal): value for signal, value in zip(reading.signals, reading.values, strict=True)})
        try:
            if not self._when(values):
                return None
            text = self._message.format_map(values) or f"{self.kind} is met at step {reading.step}."
        except KeyError as error:  # not measured yet, or a name that no signal has
            name = str(error.args[0]) if error.args else ""
            if hint := hint_if_unknown(name.partition("@")[0]):
                self._report(f"there is no signal {name!r}.{hint}")
            return None
        except Exception as error:  # the user's own code
            self._report(f"it raised {type(error).__name__}: {error}.")
            return None
        return Finding.at(
            Text(text), reading.step, self._severity, kind=self.kind, attempt=reading.attempt, time=reading.time
        )

    def _report(self, trouble: str) -> None:
        if not self._is_reported:
            self._is_reported = True
            self._warn(
                "The alert condition %s does not work: %s Training continues; further errors are not reported.",
                self.kind,
                trouble,
            )


MAX_QUEUED = 4000
POLL_SECONDS = 0.25


class _Recipient:
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
    def needs_readings(self) -> bool:
        return self._condition is not None or self.router.needs_readings

    def take(self, item: Finding | StepReading, now: float) -> None:
        if isinstance(item, Finding):
            if self._takes_events:
                self.router.take(item, now)
            return
        self.router.step(item, now)
        event = None if self._condition is None else self._condition.met(item)
        if event is not None:
            self.router.add(event, now)

    def send(self, message: AlertMessage) -> None:
        """Call the function, or send to the address."""
        if callable(self._to):
            self._to(message)
            return
        if self._channel is None:
            self._channel = open_channel(self._to, "", lambda text: self._warn("%s", text))
        self._channel.send(message)


@dataclass(slots=True)
class _Queue:
    """Events and readings for the thread."""

    items: deque[Finding | StepReading] = field(default_factory=deque)
    wake: threading.Event = field(default_factory=threading.Event)
    over: bool = False  # whether nothing more will come


class CallbackAlerts:
    """The alerts of a session that the training process sends."""

    def __init__(self, alerts: Sequence[Alert], run: Callable[[], RunLink | None], warn: Callable[..., None]) -> None:
        self._recipients = [_Recipient(alert, warn) for alert in alerts if alert.in_training]
        self.needs_readings = any(recipient.needs_readings for recipient in self._recipients)
        self._run = run
        self._warn = warn
        self._queue = _Queue()
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._pid = os.getpid()

    def tell(self, event: Finding) -> None:
        """Queue an event; never waits."""
        if self._recipients:
            self._put(event)

    def see(self, reading: StepReading | None) -> None:
        """Queue a reading, if a condition needs it; never waits."""
        if self.needs_readings and reading is not None:
            self._put(reading)

    def close(self, seconds: float) -> None:
        """Send what is queued, for at most this number of seconds."""
        thread, self._thread = self._thread, None
        if thread is not None and self._pid == os.getpid():
            self._queue.over = True
            self._queue.wake.set()
            thread.join(seconds)

    def _put(self, item: Finding | StepReading) -> None:
        if self._thread is None or self._pid != os.getpid():
            self._start()
        if len(self._queue.items) >= MAX_QUEUED:
            return
        self._queue.items.append(item)
        if isinstance(item, Finding):  # waking a thread at every step costs more than the step's measurement
            self._queue.wake.set()

    def _start(self) -> None:
        """Start the thread once, also where several threads call this."""
        if self._pid != os.getpid():  # a fork has the queue, but neither the thread nor the owner of the lock
            self._thread, self._start_lock, self._pid = None, threading.Lock(), os.getpid()
        with self._start_lock:
            if self._thread is None:
                queue = _Queue()
                thread = threading.Thread(target=self._work, args=(queue,), name="mlflow-stability alerts", daemon=True)
                thread.start()
                self._queue, self._thread = queue, thread

    def _work(self, queue: _Queue) -> None:
        over = False
        while not over:
            queue.wake.wait(POLL_SECONDS)
            queue.wake.clear()
            over = queue.over
            items = [queue.items.popleft() for _ in range(len(queue.items))]
            now = time.time()
            for recipient in self._recipients:
                for item in items:
                    recipient.take(item, now)
                messages = recipient.router.due(now, over=over)
                if messages:
                    run = self._run()
                    self._call(recipient, [replace(message, run=run) for message in messages])

    def _call(self, recipient: _Recipient, messages: Sequence[AlertMessage]) -> None:
        for message in messages:
            try:
                recipient.send(message)
            except Exception as error:  # the user's own code, or a service that does not answer
                if not recipient.failed:
                    recipient.failed = True
                    self._warn(
                        "The alert function %s raised %s: %s. Training continues; it is called for later alerts, and "
                        "further errors are not reported.",
                        recipient.name,
                        type(error).__name__,
                        error,
                    )
