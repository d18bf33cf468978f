"""Metrics of real couriers: scraped over HTTP, and received over OTLP."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from courier.staging import SIGNALS, Training
from findings import at_step
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from prometheus_client.parser import text_string_to_metric_families
from servers.ports import free_port
from waiting import wait_until

from mlflow_stability.alerts.alert import OUTLETS_VARIABLE, OutletSettings
from mlflow_stability.alerts.mirrors import Mirror
from mlflow_stability.alerts.run_metrics import EVERYTHING
from mlflow_stability.courier.deliver import SessionDelivery, ask_for_short_requests
from mlflow_stability.courier.progress import read_page
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import Closing, Fact

pytestmark = pytest.mark.usefixtures("blank_pictures")

MORE = (*SIGNALS, Signal("step_time"), Signal("tokens_processed"))

LABELS = ("model_name", "run_id", "gpu_id", "type", "severity", "le")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    ask_for_short_requests()
    return tmp_path / ".mlflow-stability"


def train(training: Training, first: int, last: int) -> None:
    for step in range(first, last + 1):
        values = (float(step), 1.0, 0.001, 1.0, 0.02, step * 100.0)
        training.journal.append(StepReading(step, MORE, values, 0, time.time()))


def use_memory(training: Training, step: int) -> None:
    """Record the memory of two devices."""
    signals = tuple(Signal("memory_allocated", place) for place in ("cuda:0", "cuda:1"))
    signals += (Signal("memory_peak", "cuda:1"),)
    training.journal.append(StepReading(step, signals, (3.0, 4.0, 5.0), 0, time.time()))


def advance(session: SessionDelivery, until: Callable[[], object], seconds: float = 60.0) -> None:
    last = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < last, session.report()
        if not session.advance():
            time.sleep(0.02)


def scraped(port: int) -> dict[str, dict[tuple[str, ...], float]]:
    """The samples by name and by the values of their labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    by_name: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in LABELS if name in sample.labels)
            by_name.setdefault(sample.name, {})[labels] = sample.value
    return by_name


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
def test_a_scrape_has_the_metrics_of_the_run(root: Path, sqlite_uri: str) -> None:
    port = free_port()
    training = Training(root, sqlite_uri)
    courier = training.start_courier(**{OUTLETS_VARIABLE: OutletSettings(prometheus_port=port).text()})
    training.journal.append(Fact("model", "GPT"))
    train(training, 1, 30)
    use_memory(training, 30)
    training.journal.append(at_step(30, "loss_spike", Severity.WARNING, "loss 30 at step 30.", time=time.time()))
    wait_until(lambda: is_open(port))
    (folder,) = (path.parent for path in training.folder.glob("*/journal"))
    run_id = wait_until(lambda: read_page(folder / "delivered.json").get("run_id"))
    labels = ("GPT", run_id)
    # Its last line is the spike: then all before it was read, too.
    spikes = {(*labels, "info"): 0.0, (*labels, "warning"): 1.0, (*labels, "critical"): 0.0}
    wait_until(lambda: scraped(port).get("llm_loss_spikes_total") == spikes)
    result = scraped(port)
    assert result["llm_training_loss"] == {labels: 30.0}
    assert result["llm_gradient_norm"] == {labels: 1.0}
    assert result["llm_training_steps_total"] == {labels: 30.0}
    assert result["llm_tokens_processed_total"] == {labels: 3000.0}
    assert sum(result["llm_gradient_spikes_total"].values()) == 0
    memory = {("0", "allocated"): 3.0, ("1", "allocated"): 4.0, ("1", "peak"): 5.0}
    assert result["llm_gpu_memory_bytes"] == {(*labels, *more): value for more, value in memory.items()}
    assert result["llm_training_events_total"] == {(*labels, "loss_spike", "warning"): 1.0}
    assert result["llm_step_duration_seconds_count"] == {labels: 30.0}
    assert result["llm_step_duration_seconds_bucket"][(*labels, "0.025")] == 30.0
    assert result["llm_step_duration_seconds_bucket"][(*labels, "0.01")] == 0.0
    prometheus = {item.prometheus for item in EVERYTHING}
    assert {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in result} <= prometheus
    training.end(Closing("finished", "", 30, time.time()))
    assert courier.wait(60) == 0
    assert not is_open(port)


@pytest.mark.slow
def test_a_port_that_is_taken_is_reported_once_and_used_when_it_is_free(
    root: Path, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlflow_stability.alerts.exporters.RETRY_SECONDS", 0.1)
    training = Training(root, sqlite_uri, interactive=True)
    train(training, 1, 10)
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        session = SessionDelivery(training.folder, sqlite_uri, lambda: False, OutletSettings(prometheus_port=port))
        until = time.monotonic() + 0.5
        advance(session, lambda: time.monotonic() > until)
        page = training.folder / "status.json"
        advance(session, lambda: read_page(page).get("notices"))
        (notice,) = read_page(page)["notices"]
        assert f"127.0.0.1, port {port}: Address already in use" in notice
    advance(session, lambda: is_open(port))
    assert scraped(port)["llm_training_steps_total"]
    training.end(Closing("finished", "", 10, time.time()))
    advance(session, lambda: session.over)
    assert not is_open(port)


class Collector:
    """A receiver of OTLP/HTTP."""

    def __init__(self) -> None:
        self.received: list[ExportMetricsServiceRequest] = []
        self.status = 200
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/metrics"
                if served.status == 200:
                    served.received.append(ExportMetricsServiceRequest.FromString(body))
                answer = ExportMetricsServiceResponse().SerializeToString()
                self.send_response(served.status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                """Nothing on stderr."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    def last(self) -> dict[str, Any]:
        """The metrics of the last request, by name."""
        scopes = self.received[-1].resource_metrics[0].scope_metrics
        return {metric.name: metric for scope in scopes for metric in scope.metrics}


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector()
    thread = Thread(target=running.server.serve_forever, args=(0.05,))
    thread.start()
    yield running
    running.server.shutdown()
    thread.join()
    running.server.server_close()


@pytest.mark.slow
def test_a_collector_receives_the_same_metrics_by_the_same_table(
    root: Path, sqlite_uri: str, collector: Collector
) -> None:
    endpoint = f"http://127.0.0.1:{collector.server.server_port}"
    training = Training(root, sqlite_uri)
    training.journal.append(Fact("model", "GPT"))
    train(training, 1, 30)
    use_memory(training, 30)
    training.journal.append(at_step(30, "loss_spike", Severity.WARNING, "loss 30 at step 30.", time=time.time()))
    training.end(Closing("finished", "", 30, time.time()))
    settings = OutletSettings(mirrors=(Mirror("otel", endpoint),))
    courier = training.start_courier(**{OUTLETS_VARIABLE: settings.text()})
    assert courier.wait(60) == 0
    result = collector.last()
    (loss,) = result["llm.training.loss"].gauge.data_points
    assert loss.as_double == 30.0
    assert {attribute.key: attribute.value.string_value for attribute in loss.attributes}["model_name"] == "GPT"
    (steps,) = result["llm.training.steps"].sum.data_points
    assert steps.as_int or steps.as_double == 30
    assert result["llm.training.steps"].sum.is_monotonic
    (times,) = result["llm.step_duration_seconds"].histogram.data_points
    assert times.count == 30
    points = result["llm.gpu.memory_bytes"].gauge.data_points
    memory = [{attribute.key: attribute.value.string_value for attribute in point.attributes} for point in points]
    assert [(labels["gpu_id"], labels["type"]) for labels in memory] == [
        *(("0", "allocated"), ("1", "allocated"), ("1", "peak")),
    ]
    assert set(result) <= {item.otel for item in EVERYTHING}


@pytest.mark.slow
def test_a_collector_that_is_away_is_reported_once_and_delays_nothing(root: Path, sqlite_uri: str) -> None:
    training = Training(root, sqlite_uri)
    train(training, 1, 30)
    training.end(Closing("finished", "", 30, time.time()))
    settings = OutletSettings(mirrors=(Mirror("otel", f"http://127.0.0.1:{free_port()}"),))
    session = SessionDelivery(training.folder, sqlite_uri, lambda: False, settings)
    began = time.monotonic()
    advance(session, lambda: session.over, 60)
    assert time.monotonic() - began < 40
    assert len(session._notices) == 1
    assert session._notices[0].startswith("OpenTelemetry metrics were not accepted (")
