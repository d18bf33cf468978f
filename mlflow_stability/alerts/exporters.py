"""Export the metrics of recordings to Prometheus and OpenTelemetry.

Guarantees: a port that is in use, or a collector that does not answer, is reported once and tried again; nothing is
raised for it. Data go to OpenTelemetry on a thread of its SDK.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from mlflow_stability.alerts.run_metrics import (
    BUCKETS,
    EVENTS,
    FAMILIES,
    KINDS_OF_SPIKES,
    STEP_DURATION,
    RunMetrics,
    Samples,
    SignalNames,
)
from mlflow_stability.vocabulary.argument import listening_address

INSTALL = "pip install 'mlflow-stability[prometheus]'"
RETRY_SECONDS = 10.0
LABELS = ("model_name", "run_id")


class PrometheusExporter:
    """Serves metrics for Prometheus to scrape, at a port of this machine or at an address that others can reach."""

    def __init__(self, port: int | str, say: Callable[[str], None]) -> None:
        self._host, self._port = listening_address(port)
        self._say = say
        self._served: list[RunMetrics] = []
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self._try_at = 0.0
        self._reported = False

    def serve(self, metrics: RunMetrics) -> None:
        self._served = [*self._served, metrics]

    def keep_listening(self) -> None:
        """Open the port, unless it is open."""
        if self._server is None and self._served and time.monotonic() >= self._try_at:
            self._try_at = time.monotonic() + RETRY_SECONDS
            self._listen()

    def over(self, metrics: RunMetrics) -> None:
        """Remove the metrics of a recording; the port is closed with the last of them."""
        self._served = [served for served in self._served if served is not metrics]
        if not self._served and self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = self._thread = None

    def collect(self) -> Iterator[Any]:
        """Return the metrics for a scrape, in the server's thread."""
        return _families([metrics.samples() for metrics in self._served])

    def describe(self) -> Sequence[Any]:
        return ()  # the metrics depend on the training

    def _listen(self) -> None:
        trouble = ""
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError:
            trouble = f"needs prometheus_client: {INSTALL}"
        else:
            registry = CollectorRegistry()
            registry.register(self)
            try:
                self._server, self._thread = start_http_server(self._port, self._host, registry=registry)
            except (OSError, OverflowError) as error:
                trouble = f"{self._host}, port {self._port}: {getattr(error, 'strerror', None) or error}"
        if trouble and not self._reported:
            self._reported = True
            self._say(
                f"Metrics for Prometheus are not served ({trouble}). Training and its run are not affected. Choose "
                "another port with autolog(prometheus_port=...), or end the process that uses this one."
            )


def _families(runs: Sequence[Samples]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    for family in FAMILIES:
        names = family[0]
        if names is STEP_DURATION:
            histogram = HistogramMetricFamily(names.prometheus, names.meaning, labels=LABELS)
            ends = [*map(str, BUCKETS), "+Inf"]
            for run in runs:
                counts = list(zip(ends, accumulate(run.buckets), strict=True))
                histogram.add_metric(_labels(run), counts, run.seconds)
            yield histogram
            continue
        labels: tuple[str, ...] = LABELS
        if names is EVENTS:
            labels = (*LABELS, "type", "severity")
        elif names.prometheus in KINDS_OF_SPIKES:
            labels = (*LABELS, "severity")
        elif names.by_device:
            labels = (*LABELS, "gpu_id", *(("type",) if names.type else ()))
        made = CounterMetricFamily if names.counter else GaugeMetricFamily
        metric = made(names.prometheus, names.meaning, labels=labels)
        for run in runs:
            own = _labels(run)
            if names is EVENTS:
                for key, count in run.events.items():
                    metric.add_metric([*own, *key], count)
            elif names.prometheus in KINDS_OF_SPIKES:
                for severity, count in run.spikes(names.prometheus).items():
                    metric.add_metric([*own, severity], count)
            elif names.by_device:
                for typed in family:
                    for gpu_id, used in run.devices(typed.quantity):
                        metric.add_metric([*own, gpu_id, *([typed.type] if typed.type else [])], used)
            elif (value := run.values.get(names.prometheus)) is not None:
                metric.add_metric(own, value)
        if metric.samples or names is EVENTS or names.prometheus in KINDS_OF_SPIKES:
            yield metric


def _labels(run: Samples) -> list[str]:
    return [run.labels[name] for name in LABELS]


EXPORT_SECONDS = 10.0
_PATH = "/v1/metrics"
_TIMEOUT = 5.0
_LOGGERS = ("opentelemetry.exporter.otlp.proto.http.metric_exporter", "opentelemetry.sdk.metrics._internal.export")
"""Loggers of the SDK; a filter of a parent logger would not be applied."""


class OtelExporter:
    """Exports the metrics of one recording over OTLP/HTTP.

    Without an endpoint, that of the standard variables ``OTEL_EXPORTER_OTLP_ENDPOINT`` and
    ``OTEL_EXPORTER_OTLP_METRICS_ENDPOINT`` is used.
    """

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
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=EXPORT_SECONDS * 1000)
        resource = Resource.create({"service.name": "mlflow-stability"})
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        self._closing: threading.Thread | None = None
        meter: Any = self._provider.get_meter("mlflow_stability")
        for family in FAMILIES:
            names = family[0]
            if names is STEP_DURATION:
                self._step_times = meter.create_histogram(
                    names.otel, names.unit, names.meaning, explicit_bucket_boundaries_advisory=list(BUCKETS)
                )
                metrics.on_step_time = self._record_step_time
            else:
                made = meter.create_observable_counter if names.counter else meter.create_observable_gauge
                made(names.otel, [self._observer(typed) for typed in family], names.unit, names.meaning)

    def close(self) -> None:
        """Send what is left and shut down, on a thread."""
        if self._closing is None:
            self._closing = threading.Thread(target=self._end, name="last metrics", daemon=True)
            self._closing.start()

    @property
    def is_closed(self) -> bool:
        return self._closing is not None and not self._closing.is_alive()

    def _end(self) -> None:
        self._provider.shutdown()
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self._trouble)

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
    """Drops the SDK's warnings after the first, which the training reports."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say
        self._reported = False

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING and not self._reported:
            self._reported = True
            self._say(
                f"OpenTelemetry metrics were not accepted ({record.getMessage()[:200]}). Training and its run are not "
                "affected; sending goes on."
            )
            return True
        return False
