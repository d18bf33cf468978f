"""Serves the metrics of the recordings that a courier delivers, for Prometheus to scrape.

Guarantees: a port that is taken is reported once and tried again now and then; nothing here ever raises for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from mlflow_stability.alerts.metrics.run_metrics import BUCKETS, RunMetrics, Samples
from mlflow_stability.alerts.metrics.signal_names import EVENTS, FAMILIES, KINDS_OF_SPIKES, STEP_DURATION

INSTALL = "pip install 'mlflow-stability[prometheus]'"
_AGAIN_AFTER = 10.0
LABELS = ("model_name", "run_id")


class PrometheusExporter:
    """One port."""

    def __init__(self, port: int, say: Callable[[str], None]) -> None:
        self._port = port
        self._say = say
        self._served: list[RunMetrics] = []
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self._try_at = 0.0
        self._reported = False

    def serve(self, metrics: RunMetrics) -> None:
        """Serve these, too."""
        self._served = [*self._served, metrics]

    def keep_listening(self) -> None:
        """Open the port, unless it is open; quick."""
        if self._server is None and self._served and time.monotonic() >= self._try_at:
            self._try_at = time.monotonic() + _AGAIN_AFTER
            self._listen()

    def over(self, metrics: RunMetrics) -> None:
        """Serve these no longer; the port is closed with the last of them."""
        self._served = [each for each in self._served if each is not metrics]
        if not self._served and self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = self._thread = None

    def collect(self) -> Iterator[Any]:
        """What a scrape gets; called in the server's thread."""
        return _families([each.samples() for each in self._served])

    def describe(self) -> Sequence[Any]:
        """Nothing beforehand: which metrics there are depends on the training."""
        return ()

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
                self._server, self._thread = start_http_server(self._port, registry=registry)
            except (OSError, OverflowError) as error:
                trouble = f"port {self._port}: {getattr(error, 'strerror', None) or error}"
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
        elif names is EVENTS:
            counter = CounterMetricFamily(names.prometheus, names.meaning, labels=(*LABELS, "type", "severity"))
            for run in runs:
                for (kind, severity), count in run.events.items():
                    counter.add_metric([*_labels(run), kind, severity], count)
            yield counter
        elif names.prometheus in KINDS_OF_SPIKES:
            counter = CounterMetricFamily(names.prometheus, names.meaning, labels=(*LABELS, "severity"))
            for run in runs:
                for severity, count in run.spikes(names.prometheus).items():
                    counter.add_metric([*_labels(run), severity], count)
            yield counter
        elif names.by_device:
            labels = (*LABELS, "gpu_id", *(("type",) if names.type else ()))
            gauge = GaugeMetricFamily(names.prometheus, names.meaning, labels=labels)
            for run in runs:
                for typed in family:
                    for gpu_id, used in run.devices(typed.quantity):
                        gauge.add_metric([*_labels(run), gpu_id, *([typed.type] if typed.type else [])], used)
            if gauge.samples:
                yield gauge
        else:
            made = CounterMetricFamily if names.counter else GaugeMetricFamily
            metric = made(names.prometheus, names.meaning, labels=LABELS)
            for run in runs:
                value = run.values.get(names.prometheus)
                if value is not None:
                    metric.add_metric(_labels(run), value)
            if metric.samples:
                yield metric


def _labels(run: Samples) -> list[str]:
    return [run.labels[name] for name in LABELS]
