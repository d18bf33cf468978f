"""The outlets of one recording beside its run: alerts, metrics for Prometheus and OpenTelemetry, and mirrors.

Guarantees: a new courier continues where the last one was killed. Alerts are about findings, conditions on signals, a
stall, and how the training ended; messages link to the run, unless the tracking server is away for long; addresses are
not written anywhere. Mirrors show the points of MLflow's charts under the same keys, and histograms by layer; they are
sent in a thread, as some tools take seconds to start; a failure is reported once and retried.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np

from mlflow_stability.alerts.channels import Channel, open_channel
from mlflow_stability.alerts.exporters import OtelExporter
from mlflow_stability.alerts.message import AlertMessage, RunLink
from mlflow_stability.alerts.mirrors import (
    OTEL,
    TENSORBOARD,
    LayerHistogram,
    Mirror,
    Scalar,
    TensorBoardWriter,
    WandbWriter,
)
from mlflow_stability.alerts.router import AlertRouter, ending_event
from mlflow_stability.alerts.run_metrics import RunMetrics
from mlflow_stability.courier.processes import TrainingState, silent_end, written_at
from mlflow_stability.courier.progress import Delivered, write_page
from mlflow_stability.courier.sinks.metric_sink import DeliveryPace, MetricSink
from mlflow_stability.courier.sinks.sink import Backoff, Outlet, OutletPlan, readable
from mlflow_stability.journal.array_files import LayerTableFile, layer_table_files, read_layer_table
from mlflow_stability.journal.journal import Record
from mlflow_stability.journal.layout import ALERTS, mirror_page, read_page
from mlflow_stability.tracking.keys import metric_key
from mlflow_stability.tracking.thinning import Point
from mlflow_stability.vocabulary.measured.signal import StepReading
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Opening

RUN_SECONDS = 30.0  # how long mirrors and metrics wait for the run: with another label these would be other series


class MirrorOutlet(Outlet):
    def __init__(self, plan: OutletPlan, mirror: Mirror, delivered: Delivered, opening: Opening) -> None:
        self.link: RunLink | None = None  # the run, once known
        self._mirror, self._opening = mirror, opening
        self._progress = _Progress(delivered, mirror)
        every, layers = opening.log_every_n_steps, opening.layer_metrics
        self._metrics = MetricSink(self._progress, self, DeliveryPace(""), every, layers)
        super().__init__(plan, self._metrics.until)
        self._writer: TensorBoardWriter | WandbWriter | None = None
        self._began = time.monotonic()
        self._jobs: queue.SimpleQueue[bool] = queue.SimpleQueue()  # requests to send: whether the training is over
        self._results: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._busy = False  # the thread has the points: nothing can be taken
        self._thread = threading.Thread(target=self._work, name=f"mirror to {mirror.tool}", daemon=True)
        self._reported = False
        self._backoff = Backoff(1.0, 60.0)

    @property
    def full(self) -> bool:
        return self.done or self._busy or self._metrics.full

    def log(self, points: Sequence[Point], prefix: str) -> None:
        self._open_writer().write(
            [Scalar(metric_key(point.signal, prefix), point.step, point.value, point.time) for point in points]
        )

    def _open_writer(self) -> TensorBoardWriter | WandbWriter:
        if self._writer is None:
            link = self.link or RunLink(self._opening.run_id or self._opening.recording)
            kind = TensorBoardWriter if self._mirror.tool == TENSORBOARD else WandbWriter
            self._writer = kind(self._mirror.target, link, self._opening.directory, self._progress.of_writer)
            self._progress.saved = self._writer.saved
        return self._writer

    def _take(self, record: Record) -> None:
        self._metrics.until = self.until
        self._metrics.take(record)

    def _flush(self, state: TrainingState) -> bool:
        """Pass points to the thread if it is idle, and check whether everything was written."""
        now = time.monotonic()
        if self._busy:
            self._look_for_result(now)
        self.ends(state)
        is_known = self.link is not None or now - self._began > RUN_SECONDS
        due = is_known and self._backoff.ready(now) and (not self.more or self._metrics.full)
        if due and not self._busy and not self._metrics.done:
            self._metrics.until, self._metrics.more, self._busy = self.until, self.more, True
            if not self._thread.ident:
                self._thread.start()
            self._jobs.put(self.over_since is not None)
        self.settle(self._busy or not self._metrics.done)
        return False

    def _look_for_result(self, now: float) -> None:
        try:
            error = self._results.get_nowait()
        except queue.Empty:
            return
        self._busy = False
        if error is None:
            self._backoff.succeeded()
            return
        self._backoff.failed(error, now)
        if not self._reported:
            self._reported = True
            self._plan.say(
                f"Mirroring to {self._mirror.tool} failed ({type(error).__name__}: {error}). Training and its "
                "run are not affected; it is tried again."
            )

    def _work(self) -> None:
        """Send points at each request, until everything has arrived."""
        while not self._send_all(self._jobs.get()):
            pass

    def _send_all(self, over: bool) -> bool:
        error = None
        try:
            progress = self._progress
            files = layer_table_files(progress.folder, progress.tables_until, settled=not over)
            for step, of_step in groupby((file for file in files if file.has_histograms), key=lambda file: file.step):
                histograms = [histograms_of(file, progress.prefix, progress.offset) for file in of_step]
                self._open_writer().write_histograms(list(chain.from_iterable(histograms)))
                progress.tables_until = step
                progress.save()
            while self._metrics.flush(over):
                pass
            if self._metrics.done:
                self._close()
        except Exception as raised:  # the next attempt continues from the saved position
            error = raised
            self._metrics.send_again()
            with suppress(Exception):
                self._close()
        self._results.put(error)
        return self._metrics.done

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


class _Progress:
    """Position of a mirror, saved like that of metrics."""

    def __init__(self, delivered: Delivered, mirror: Mirror) -> None:
        self._delivered = delivered
        self._page = mirror_page(delivered.folder, mirror.tool)
        page = read_page(self._page)
        self.metrics_until: int = page.get("until", 0)
        self.tables_until: int = page.get("tables", -1)  # last step whose histograms were written
        self.thinning: dict[str, Any] = page.get("thinning", {})
        self.of_writer: dict[str, Any] = page.get("writer", {})
        self.saved: Callable[[], Mapping[str, Any]] = dict

    @property
    def folder(self) -> Path:
        return self._delivered.folder

    @property
    def offset(self) -> int:
        return self._delivered.offset

    @property
    def prefix(self) -> str:
        return self._delivered.prefix

    def save(self) -> None:
        self.of_writer = dict(self.saved())
        page = {"until": self.metrics_until, "tables": self.tables_until, "thinning": self.thinning}
        write_page(self._page, {**page, "writer": self.of_writer})


_logger = logging.getLogger("mlflow_stability.courier")


def histograms_of(file: LayerTableFile, prefix: str, offset: int) -> list[LayerHistogram]:
    """Return a histogram for each layer with finite values; none where the file is damaged or gone."""
    table, written = readable(read_layer_table, file.path), written_at(file.path)
    if table is None:
        return []
    step, name = table.step + offset, f"{prefix}/histograms/{table.what}"
    return [
        LayerHistogram(f"{name}/{layer}", step, written, edges.tolist(), counts.tolist())
        for layer, edges, counts in zip(table.layers, table.edges, table.counts, strict=True)
        if np.isfinite(edges).all()
    ]


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
            saved = page.get("channels", {}).get(channel.key, {})
            opened = partial(open_channel, channel.address, plan.settings.console, plan.say)
            router = self._routers[channel.key] = AlertRouter(channel.rules, channel.severity, channel.cooldown)
            router.resume(saved.get("router", {}))
            sender = self._senders[channel.key] = ChannelSender(channel.key, opened, plan.say, self._keep)
            sender.resume(saved)
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
            where = f"not created yet; trained on {self._opening.host} in {self._opening.directory}"
            run_id = self._opening.run_id or ""
            link = self.link or RunLink(run_id, "" if run_id else where)
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
