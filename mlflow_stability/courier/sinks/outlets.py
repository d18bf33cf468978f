"""The outlets of one recording, together."""

from __future__ import annotations

import time
from collections.abc import Callable

from mlflow_stability.alerts.exporters import OtelExporter
from mlflow_stability.alerts.message import RunLink
from mlflow_stability.alerts.mirrors import OTEL
from mlflow_stability.alerts.run_metrics import RunMetrics
from mlflow_stability.courier.processes import TrainingState
from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.sinks.alert_outlet import AlertOutlet
from mlflow_stability.courier.sinks.mirror_outlet import MirrorOutlet
from mlflow_stability.courier.sinks.sink import Outlet, OutletPlan
from mlflow_stability.journal.layout import ALERTS, mirror_page
from mlflow_stability.journal.record import Record
from mlflow_stability.vocabulary.run import Opening

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
            begun = not plan.settings.is_left_behind or mirror_page(delivered.folder, mirror.key).exists()
            if mirror.tool != OTEL and begun:
                self.sinks.append(MirrorOutlet(plan, mirror, delivered, opening))

    @property
    def done(self) -> bool:
        return all(sink.done for sink in self.sinks)

    @property
    def awaited(self) -> bool:
        return any(sink.awaited and not sink.done for sink in self.sinks)

    def link(self, find_link: Callable[[], RunLink]) -> None:
        """Give the outlets a link to the run; `found` asks the tracking server for it."""
        waiting = [sink for sink in self.sinks if isinstance(sink, AlertOutlet | MirrorOutlet) and sink.link is None]
        if waiting:
            run = find_link()
            for sink in waiting:
                sink.link = run

    def flush(self, state: TrainingState) -> bool:
        moved = False
        for sink in self.sinks:
            moved |= sink.flush(state)
        return moved
