"""The outlets of one recording beside its run: alerts, metrics for Prometheus and OpenTelemetry, and mirrors.

Guarantees of alerts, which are about findings, conditions on signals, a stall, and how the training ended: a new
courier continues where the last one was killed; messages link to the run, unless the tracking server is away for long;
addresses are not written anywhere.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from mlflow_stability.alerts.alert import ChannelSettings
from mlflow_stability.alerts.channels import Channel, open_channel
from mlflow_stability.alerts.exporters import OtelExporter
from mlflow_stability.alerts.message import AlertMessage, RunLink
from mlflow_stability.alerts.mirrors import OTEL
from mlflow_stability.alerts.router import AlertRouter, ending_event
from mlflow_stability.alerts.run_metrics import RunMetrics
from mlflow_stability.courier.processes import TrainingState, silent_end
from mlflow_stability.courier.progress import Delivered, write_page
from mlflow_stability.courier.sinks.mirror_outlet import MirrorOutlet
from mlflow_stability.courier.sinks.sink import Backoff, Outlet, OutletPlan
from mlflow_stability.journal.layout import ALERTS, mirror_page, read_page
from mlflow_stability.journal.record import Record
from mlflow_stability.vocabulary.measured.signal import StepReading
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Opening

MOST_PENDING = 100  # messages that wait for a failing channel; then the oldest are dropped


class ChannelSender:
    """Sends the messages of one channel, with retries."""

    def __init__(
        self, key: str, opened: Callable[[], Channel], say: Callable[[str], None], keep: Callable[[], None]
    ) -> None:
        self.key = key
        self.pending: deque[AlertMessage] = deque()
        self._opened = opened
        self._say = say
        self._keep = keep
        self._channel: Channel | None = None
        self._reported = False
        self._results: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._busy = False
        self._backoff = Backoff(1.0, 300.0)

    def add(self, messages: list[AlertMessage]) -> None:
        self.pending.extend(messages)
        while len(self.pending) > MOST_PENDING:
            del self.pending[1 if self._busy else 0]

    def advance(self, now: float) -> bool:
        """Take the result of the last attempt, and start the next one; True if a message was sent."""
        moved = self._busy and self._take_result(now)
        if self.pending and not self._busy and self._backoff.ready(now):
            self._keep()
            self._busy = True
            threading.Thread(
                target=self._send, args=(self.pending[0],), name=f"alerts to {self.key}", daemon=True
            ).start()
        return moved

    def saved(self) -> dict[str, Any]:
        return {"pending": [message.plain() for message in self.pending], "reported": self._reported}

    def resume(self, saved: dict[str, Any]) -> None:
        self.pending = deque(AlertMessage.from_plain(message) for message in saved.get("pending", ()))
        self._reported = saved.get("reported", False)

    def _take_result(self, now: float) -> bool:
        try:
            error = self._results.get_nowait()
        except queue.Empty:
            return False
        self._busy = False
        if error is not None:
            self._backoff.failed(error, now)
            if not self._reported:
                self._reported = True
                self._say(
                    f"Alerts to {self.key} were not accepted ({self._backoff.error}). Training continues; each alert "
                    "is sent again until it is accepted. Check the URL with `mlflow-stability doctor --alerts`."
                )
            return False
        self.pending.popleft()
        self._backoff.succeeded()
        self._keep()
        return True

    def _send(self, message: AlertMessage) -> None:
        failure = None
        try:
            if self._channel is None:
                self._channel = self._opened()
            self._channel.send(message)
        except Exception as error:  # the next attempt may work
            failure = error
        self._results.put(failure)


LINK_SECONDS = 15.0  # how long alerts wait for their run
_KEEP_EVERY = 5.0


class AlertOutlet(Outlet):
    awaited_seconds = 15.0

    def __init__(self, plan: OutletPlan, delivered: Delivered, opening: Opening) -> None:
        self._page = delivered.folder / ALERTS
        page = read_page(self._page)
        super().__init__(plan, page.get("until", 0))
        self.link: RunLink | None = None  # the run, once known
        self._delivered = delivered
        self._opening = opening
        self._began = time.monotonic()
        self._routers: dict[str, AlertRouter] = {}
        self._senders: dict[str, ChannelSender] = {}
        for channel in plan.settings.channels:
            self._add(channel, page.get("channels", {}).get(channel.key, {}))
        self._last_step, self._last_time = page.get("last_step", 0), page.get("last_time", 0.0)
        self._ended, self._stalled_at = page.get("ended", False), page.get("stalled_at", 0.0)
        self._kept_at = 0.0

    def _flush(self, state: TrainingState) -> bool:
        now = time.time()
        # A stall and the end are not in the journal.
        if state.stalled is not None and state.stalled.time != self._stalled_at:
            self._stalled_at = state.stalled.time
            self._tell(state.stalled, now)
        if self.ends(state) and not self._ended:
            self._ended = True
            silent = silent_end(state.killed_for_memory(), self._last_step, self._last_time, state.journal_deleted)
            closing = self.closing or state.closing or self.returned or silent
            event = ending_event(closing, self._last_step, self._last_time or now)
            if event is not None:
                self._tell(event, now)
        waits_for_link = self.link is None and time.monotonic() - self._began < LINK_SECONDS
        if not waits_for_link:
            link = self.link or RunLink(
                self._opening.run_id or "",
                ""
                if self._opening.run_id
                else f"not created yet; trained on {self._opening.host} in {self._opening.directory}",
            )
            for key, router in self._routers.items():
                messages = router.due(now, link, over=(self.over_since is not None and not self.more))
                if messages:
                    self._senders[key].add(messages)
        moved = False
        for sender in self._senders.values():
            moved |= sender.advance(time.monotonic())
        if time.monotonic() - self._kept_at >= _KEEP_EVERY:
            self._keep()
        self.settle(self.more or waits_for_link or any(sender.pending for sender in self._senders.values()))
        return moved

    def _add(self, channel: ChannelSettings, saved: dict[str, Any]) -> None:
        opened = partial(open_channel, channel.address, self._plan.settings.console, self._plan.say)
        router = AlertRouter(channel.rules, channel.severity, channel.cooldown)
        router.resume(saved.get("router", {}))
        sender = ChannelSender(channel.key, opened, self._plan.say, self._keep)
        sender.resume(saved)
        self._routers[channel.key], self._senders[channel.key] = router, sender

    def _take(self, record: Record) -> None:
        offset, now = self._delivered.offset, time.time()
        if isinstance(record, StepReading):
            self._last_step, self._last_time = record.step + offset, record.time
            for router in self._routers.values():
                if router.needs_readings:
                    router.step(replace(record, step=record.step + offset) if offset else record, now)
        elif isinstance(record, Finding):
            self._tell(record.shifted(offset), now)

    def _tell(self, event: Finding, now: float) -> None:
        for router in self._routers.values():
            router.take(event, now)

    def _keep(self) -> None:
        """Save what was read, what was sent and what waits."""
        self._kept_at = time.monotonic()
        write_page(
            self._page,
            {
                "until": self.until,
                "last_step": self._last_step,
                "last_time": self._last_time,
                "ended": self._ended,
                "stalled_at": self._stalled_at,
                "channels": {
                    key: {**sender.saved(), "router": self._routers[key].saved()}
                    for key, sender in self._senders.items()
                },
            },
        )


RUN_SECONDS = 30.0
"""How long metrics wait for the id of their run: with another label they would be other series."""


class MetricsOutlet(Outlet):
    """Metrics of one recording, for Prometheus and OpenTelemetry."""

    awaited_seconds = 5.0
    give_up_seconds = 30.0

    def __init__(self, plan: OutletPlan, delivered: Delivered) -> None:
        super().__init__(plan)
        self._delivered = delivered
        self._metrics = RunMetrics()
        self._prometheus = plan.prometheus
        self._otel: OtelExporter | None = None
        self._is_served = False
        self._began = time.monotonic()
        for mirror in plan.settings.mirrors:
            if mirror.tool == OTEL:
                self._otel = OtelExporter(mirror.target, self._metrics, plan.say)
        self.awaited = self._otel is not None

    @property
    def full(self) -> bool:
        return self.done or not self._is_served

    def _take(self, record: Record) -> None:
        self._metrics.take(record)

    def _flush(self, state: TrainingState) -> bool:
        """Serve the metrics; at the end send the rest and close."""
        self._metrics.run_id = self._delivered.run_id or ""
        if not self._is_served:
            if not self._metrics.run_id and time.monotonic() - self._began < RUN_SECONDS:
                return False
            self._is_served = True
            if self._prometheus is not None:
                self._prometheus.serve(self._metrics)
        if self._prometheus is not None:
            self._prometheus.keep_listening()
        if self.ends(state) and self._otel is not None:
            self._otel.close()
        self.settle(self._otel is not None and not self._otel.is_closed)
        if self.done and self._prometheus is not None:
            self._prometheus.over(self._metrics)
        return False


class Outlets:
    """All outlets; a failing one delays no other."""

    def __init__(self, plan: OutletPlan, delivered: Delivered, opening: Opening) -> None:
        self.sinks: list[Outlet] = []
        begun = not plan.settings.is_left_behind or (delivered.folder / ALERTS).exists()
        if plan.settings.channels and begun:
            self.sinks.append(AlertOutlet(plan, delivered, opening))
        exports = any(mirror.tool == OTEL for mirror in plan.settings.mirrors)
        if (plan.prometheus is not None or exports) and not plan.settings.is_left_behind:
            self.sinks.append(MetricsOutlet(plan, delivered))
        for mirror in plan.settings.mirrors:
            begun = not plan.settings.is_left_behind or mirror_page(delivered.folder, mirror.tool).exists()
            if mirror.tool != OTEL and begun:
                self.sinks.append(MirrorOutlet(plan, mirror, delivered, opening))

    @property
    def done(self) -> bool:
        return all(sink.done for sink in self.sinks)

    @property
    def awaited(self) -> bool:
        return any(sink.awaited and not sink.done for sink in self.sinks)

    def link(self, run: RunLink) -> None:
        for sink in self.sinks:
            if isinstance(sink, AlertOutlet | MirrorOutlet):
                sink.link = run

    def flush(self, state: TrainingState) -> bool:
        moved = False
        for sink in self.sinks:
            moved |= sink.flush(state)
        return moved
