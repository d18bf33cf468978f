"""Alerts through real couriers and a real server: the right ones, once, whatever fails or is killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from courier.staging import Training, kill
from findings import at_step
from servers.alert_services import HANG, ChatServer
from waiting import wait_until

from mlflow_stability.alerts.alert import OUTLETS_VARIABLE, Alert, OutletSettings, outlet_settings
from mlflow_stability.analysis.load import load_run
from mlflow_stability.courier.deliver import SessionDelivery, ask_for_short_requests
from mlflow_stability.courier.progress import read_page
from mlflow_stability.courier.sinks import outlets
from mlflow_stability.tracking.client import run_page
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import Closing

pytestmark = pytest.mark.usefixtures("blank_pictures")

SECRET = "hunter2-hunter2"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    ask_for_short_requests()
    return tmp_path / ".mlflow-stability"


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer() as running:
        yield running


def settings(server: ChatServer, patience: float = 20.0, **more: object) -> OutletSettings:
    """Settings of an alert that is sent again where no answer came within `patience` seconds."""
    url = f"json://me:{SECRET}@{server.address}/hook?rto={patience}&cto={patience}"
    return outlet_settings([Alert(url, **more)], "")  # type: ignore[arg-type]


def training_of(root: Path, uri: str) -> Training:
    return Training(root, uri, interactive=True)  # its steps are of long ago, and no stall


def spike(step: int, severity: Severity = Severity.WARNING) -> Finding:
    return at_step(step, "loss_spike", severity, f"loss 9 at step {step}, 20σ above its baseline.", time=time.time())


def advance(session: SessionDelivery, until: Callable[[], object], seconds: float = 60.0) -> None:
    last = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < last, session.report()
        if not session.advance():
            time.sleep(0.02)


@pytest.mark.slow
def test_a_burst_a_kill_and_nothing_else_arrive_once_with_a_link_and_without_a_trace_of_the_address(
    root: Path, rest_server: str, server: ChatServer
) -> None:
    training = training_of(root, rest_server)
    courier = training.start_courier(**{OUTLETS_VARIABLE: settings(server).text()})
    training.train(1, 400)
    for step in range(400, 601, 15):
        training.journal.append(spike(step))
    training.journal.append(at_step(601, "rollback", Severity.INFO, "Rolled back.", time=time.time()))
    wait_until(lambda: server.taken)
    (page,) = training.folder.glob("*/alerts.json")
    run_id = read_page(page.parent / "delivered.json")["run_id"]
    texts = [path.read_bytes() for path in training.folder.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in text for text in texts)
    training.end()
    assert courier.wait(60) == 0
    burst, killed = (request.body for request in server.requests)
    assert burst["title"] == "WARNING: 14 loss spikes in 195 steps (400 to 595)"
    assert burst["message"].endswith(run_page(run_id, rest_server).url)
    assert killed["title"] == "CRITICAL: kill at step 400"
    assert "The process was killed after step 400" in killed["message"]
    assert not root.exists()


@pytest.mark.slow
def test_a_server_that_fails_is_asked_again_reported_once_and_the_message_arrives_once(
    root: Path, sqlite_uri: str, server: ChatServer
) -> None:
    server.answers = [500, 503]
    training = training_of(root, sqlite_uri)
    session = SessionDelivery(training.folder, sqlite_uri, lambda: False, settings(server))
    training.train(1, 50)
    training.journal.append(spike(50, Severity.CRITICAL))
    advance(session, lambda: server.taken)
    training.end(Closing("finished", "", 50, time.time()))
    advance(session, lambda: session.over)
    assert [request.status for request in server.requests] == [500, 503, 200]
    gaps = [after.time - before.time for before, after in zip(server.requests, server.requests[1:], strict=False)]
    assert gaps[0] >= 1.0
    assert gaps[1] >= 2.0
    (notice,) = read_page(training.folder / "status.json")["notices"]
    assert notice.startswith("Alerts to json were not accepted (")
    assert "500" in notice
    assert SECRET not in notice


@pytest.mark.slow
def test_a_server_that_never_answers_delays_neither_the_record_nor_the_end_for_long(
    root: Path, sqlite_uri: str, server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlets.AlertOutlet, "awaited_seconds", 1.0)
    server.answers = [HANG] * 20
    training = training_of(root, sqlite_uri)
    session = SessionDelivery(training.folder, sqlite_uri, lambda: False, settings(server, patience=3.0))
    training.train(1, 50)
    training.journal.append(spike(50, Severity.CRITICAL))
    advance(session, lambda: server.requests)
    training.train(51, 200)
    training.end(Closing("crashed", "ValueError: no", 200, time.time()))
    (delivered,) = training.folder.glob("*/delivered.json")
    began = time.monotonic()
    advance(session, lambda: read_page(delivered).get("complete"))
    assert time.monotonic() - began < 10
    assert not session.over  # it is tried again
    assert len(load_run(read_page(delivered)["run_id"], sqlite_uri)) == 200
    server.answers = []
    advance(session, lambda: session.over)
    assert sorted(item.body["title"] for item in server.taken) == [
        "CRITICAL: crash at step 200",
        "CRITICAL: loss spike at step 50",
    ]


@pytest.mark.slow
def test_a_killed_courier_sends_nothing_twice_that_it_kept_as_sent(
    root: Path, sqlite_uri: str, server: ChatServer
) -> None:
    training = training_of(root, sqlite_uri)
    courier = training.start_courier(**{OUTLETS_VARIABLE: settings(server).text()})
    training.train(1, 50)
    training.journal.append(spike(50, Severity.CRITICAL))
    (folder,) = (path.parent for path in training.folder.glob("*/journal"))
    page = folder / "alerts.json"
    wait_until(lambda: server.requests and not read_page(page)["channels"]["json"]["pending"])
    kill(courier)
    training.journal.append(at_step(51, "nan_detected", Severity.CRITICAL, "loss is NaN at step 51.", time=time.time()))
    training.end(Closing("finished", "", 51, time.time()))
    assert training.start_courier(**{OUTLETS_VARIABLE: settings(server).text()}).wait(60) == 0
    assert [request.body["title"] for request in server.requests] == [
        "CRITICAL: loss spike at step 50",
        "CRITICAL: NaN at step 51",
    ]


def test_alerts_do_not_wait_for_a_tracking_server_that_is_away(
    root: Path, server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlets, "LINK_SECONDS", 0.5)
    training = training_of(root, "http://127.0.0.1:9")
    session = SessionDelivery(training.folder, "http://127.0.0.1:9", lambda: False, settings(server))
    training.train(1, 50)
    training.journal.append(spike(50, Severity.CRITICAL))
    advance(session, lambda: server.taken)
    training.end()
    assert "not created yet; trained on" in server.taken[0].body["message"]


def test_an_older_training_is_reported_only_if_it_had_alerts_itself(
    root: Path, sqlite_uri: str, server: ChatServer
) -> None:
    for had_alerts in (False, True):
        training = training_of(root, sqlite_uri)
        training.train(1, 5)
        if had_alerts:
            (folder,) = (path.parent for path in training.folder.glob("*/journal"))
            (folder / "alerts.json").write_text("{}")
        training.end()
        left = settings(server).left_behind()
        session = SessionDelivery(training.folder, sqlite_uri, lambda: False, left)
        advance(session, lambda session=session: session.over)
    assert [request.body["title"] for request in server.requests] == ["CRITICAL: kill at step 5"]


def test_conditions_on_signals_are_looked_at_in_the_journal(root: Path, sqlite_uri: str, server: ChatServer) -> None:
    training = training_of(root, sqlite_uri)
    session = SessionDelivery(
        training.folder, sqlite_uri, lambda: False, settings(server, rules=("loss>=41", "divergence"))
    )
    training.train(1, 50)
    training.journal.append(spike(50, Severity.CRITICAL))
    training.end(Closing("finished", "", 50, time.time()))
    advance(session, lambda: session.over)
    assert [request.body["title"] for request in server.requests] == [
        "WARNING: loss>=41 (10 times) in 9 steps (41 to 50)"
    ]


@pytest.mark.slow
def test_a_training_that_hangs_is_reported_once(
    root: Path, sqlite_uri: str, server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(root, sqlite_uri)  # its last step was years ago
    training.train(1, 20)
    session = SessionDelivery(training.folder, sqlite_uri, lambda: False, settings(server))
    advance(session, lambda: server.taken)
    until = time.monotonic() + 1.0
    advance(session, lambda: time.monotonic() > until)
    training.end(Closing("finished", "", 20, time.time()))
    advance(session, lambda: session.over)
    assert [request.body["title"] for request in server.requests] == ["CRITICAL: stall at step 20"]
    assert "py-spy dump" in server.requests[0].body["message"]
