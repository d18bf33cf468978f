"""Exports the metrics of one recording as OpenTelemetry metrics, over OTLP/HTTP.

The endpoint is the one that was asked for, or that of the standard variables ``OTEL_EXPORTER_OTLP_ENDPOINT`` and
``OTEL_EXPORTER_OTLP_METRICS_ENDPOINT``. Guarantees: everything is sent on a thread of the SDK; a collector that does
not answer is reported once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from mlflow_stability.alerts.metrics.run_metrics import BUCKETS, RunMetrics
from mlflow_stability.alerts.metrics.signal_names import EVENTS, FAMILIES, STEP_DURATION, SignalNames

INSTALL = "pip install 'mlflow-stability[otel]'"
EVERY_SECONDS = 10.0
_PATH = "/v1/metrics"
_TIMEOUT = 5.0
_LOGGERS = ("opentelemetry.exporter.otlp.proto.http.metric_exporter", "opentelemetry.sdk.metrics._internal.export")
"""A filter is asked only by the logger that something is said to, not by those above it."""


class OtelExporter:
    """The way of one recording's metrics to a collector."""

    def __init__(self, endpoint: str, metrics: RunMetrics, say: Callable[[str], None]) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource

        self._metrics = metrics
        self._trouble = _ReportedOnce(say)
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self._trouble)
        where = endpoint.rstrip("/").removesuffix(_PATH) + _PATH if endpoint else None
        exporter = OTLPMetricExporter(where, timeout=_TIMEOUT)
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=EVERY_SECONDS * 1000)
        resource = Resource.create({"service.name": "mlflow-stability"})
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        self._make(self._provider.get_meter("mlflow_stability"))
        self._closing: threading.Thread | None = None

    def close(self) -> None:
        """Send what is left and end, on a thread."""
        if self._closing is None:
            self._closing = threading.Thread(target=self._end, name="last metrics", daemon=True)
            self._closing.start()

    @property
    def is_closed(self) -> bool:
        """Whether that is done."""
        return self._closing is not None and not self._closing.is_alive()

    def _end(self) -> None:
        self._provider.shutdown()
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self._trouble)

    def _make(self, meter: Any) -> None:
        for family in FAMILIES:
            names = family[0]
            if names is STEP_DURATION:
                self._step_times = meter.create_histogram(
                    names.otel, names.unit, names.meaning, explicit_bucket_boundaries_advisory=list(BUCKETS)
                )
                self._metrics.on_step_time = self._record_step_time
            else:
                made = meter.create_observable_counter if names.counter else meter.create_observable_gauge
                made(names.otel, [self._observer(typed) for typed in family], names.unit, names.meaning)

    def _observer(self, names: SignalNames) -> Callable[[Any], Iterable[Any]]:
        from opentelemetry.metrics import Observation

        def observe(_: Any) -> Iterable[Any]:
            samples = self._metrics.samples()
            attributes = dict(samples.labels)
            if names is EVENTS:
                return [
                    Observation(count, {**attributes, "type": kind, "severity": severity})
                    for (kind, severity), count in samples.events.items()
                ]
            if names.by_device:
                labels = {**attributes, "type": names.type} if names.type else attributes
                devices = samples.devices(names.quantity)
                return [Observation(value, {**labels, "gpu_id": gpu_id}) for gpu_id, value in devices]
            value = samples.values.get(names.prometheus)
            return [] if value is None else [Observation(value, attributes)]

        return observe

    def _record_step_time(self, seconds: float) -> None:
        labels = {"model_name": self._metrics.model_name, "run_id": self._metrics.run_id}
        self._step_times.record(seconds, labels)


class _ReportedOnce(logging.Filter):
    """Keeps the SDK's complaints out of the log, but for the first, which the training reports."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say
        self._reported = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it goes into the log."""
        if record.levelno >= logging.WARNING and not self._reported:
            self._reported = True
            self._say(
                f"OpenTelemetry metrics were not accepted ({record.getMessage()[:200]}). Training and its run are not "
                "affected; sending goes on."
            )
            return True
        return False
