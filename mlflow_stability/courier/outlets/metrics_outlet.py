"""Metrics of one recording for Prometheus and OpenTelemetry: what they are now, not what they were.

Records are taken from the first one on, so that counters of a courier that was restarted go on where they were.
"""

from __future__ import annotations

import time

from mlflow_stability.alerts.metrics import OTEL, RunMetrics
from mlflow_stability.alerts.metrics.otel_exporter import OtelExporter
from mlflow_stability.courier.outlets.outlet import Outlet, OutletPlan
from mlflow_stability.courier.process.training_process import TrainingState
from mlflow_stability.courier.progress import Delivered
from mlflow_stability.journal.record import Record

RUN_SECONDS = 30.0
"""For so long metrics wait for the id of their run: with another label they would be other series."""
AWAITED_SECONDS = 5.0
"""For so long the end of the training waits for the last metrics."""
_GIVE_UP_SECONDS = 30.0


class MetricsOutlet(Outlet):
    """The metrics of one recording."""

    def __init__(self, plan: OutletPlan, delivered: Delivered) -> None:
        super().__init__(plan)
        self._delivered = delivered
        self._metrics = RunMetrics()
        self._prometheus = plan.prometheus
        self._otel: OtelExporter | None = None
        self._over_since: float | None = None
        self._is_served = False
        self._began = time.monotonic()
        for mirror in plan.settings.mirrors:
            if mirror.tool == OTEL:
                self._otel = OtelExporter(mirror.target, self._metrics, plan.say)
        self.awaited = self._otel is not None

    @property
    def full(self) -> bool:
        """Whether nothing is taken: before the run is known, and in the end."""
        return self.done or not self._is_served

    def _take(self, record: Record) -> None:
        self._metrics.take(record)

    def _flush(self, state: TrainingState) -> bool:
        """Serve the metrics; at the end send what is left and close."""
        self._metrics.run_id = self._delivered.run_id or ""
        if not self._is_served:
            if not self._metrics.run_id and time.monotonic() - self._began < RUN_SECONDS:
                return False
            self._is_served = True
            if self._prometheus is not None:
                self._prometheus.serve(self._metrics)
        if self._prometheus is not None:
            self._prometheus.keep_listening()
        if self._over_since is None and self.is_over(state):
            self._over_since = time.monotonic()
            if self._otel is not None:
                self._otel.close()
        if self._over_since is not None:
            self._end(time.monotonic() - self._over_since)
        return False

    def _end(self, since: float) -> None:
        sent = self._otel is None or self._otel.is_closed
        self.awaited = not sent and since < AWAITED_SECONDS
        self.done = sent or since > _GIVE_UP_SECONDS
        if self.done and self._prometheus is not None:
            self._prometheus.over(self._metrics)
