import json
import sqlite3
import time
from collections import Counter

import pytest
from courier.staging import SIGNALS, Training, bookkeeping
from mlflow import MlflowClient

from mlflow_stability.courier.deliver import SessionDelivery, ask_for_short_requests, deliver_session
from mlflow_stability.courier.sinks import metric_sink
from mlflow_stability.tracking.keys import metric_key
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.run import Closing

pytestmark = pytest.mark.usefixtures("blank_pictures")

ASKED = 2
STEPS = 1200


class Locked:
    """Another program that keeps a SQLite database to itself."""

    def __init__(self, uri):
        self._connection = sqlite3.connect(uri.removeprefix("sqlite:///"), isolation_level=None)
        self._connection.execute("BEGIN EXCLUSIVE")

    def end(self):
        self._connection.execute("ROLLBACK")
        self._connection.close()


def train(training, first, last, began):
    """A fast training: 1,000 steps a second."""
    for step in range(first, last + 1):
        values = (float(step % 50), step + 0.25, 0.001, step + 0.5)
        training.journal.append(StepReading(step, SIGNALS, values, 0, began + step / 1000))


def follow(session, until, most=90.0):
    """What the courier does while training lives."""
    end = time.monotonic() + most
    while not until():
        assert time.monotonic() < end
        if not session.advance():
            time.sleep(0.02)


def newest(uri):
    """The newest step of the chart of the loss."""
    client = MlflowClient(uri)
    (run,) = client.search_runs(["0"])
    return max(point.step for point in client.get_metric_history(run.info.run_id, metric_key(Signal("loss"))))


@pytest.fixture
def training(tmp_path, sqlite_uri, monkeypatch):
    ask_for_short_requests()
    monkeypatch.setattr(metric_sink, "_SQLITE_SHARE", 0.1)  # so that its speed is known in seconds
    impatient = f"{sqlite_uri}?timeout=0.2"
    training = Training(tmp_path / ".mlflow-stability", impatient, log_every_n_steps=ASKED)
    yield training
    training.end()


@pytest.fixture
def delivered(training, sqlite_uri):
    """A run whose store was locked for a while."""

    def delivered_page(key):
        return json.loads((training.journal.folder / "delivered.json").read_text())[key]

    began = time.time()
    train(training, 1, STEPS // 4, began)
    session = SessionDelivery(training.folder, None, lambda: False)
    session.claim.take()
    session.advance()
    follow(session, until=lambda: delivered_page("metrics_until"))
    locked = Locked(sqlite_uri)
    train(training, STEPS // 4 + 1, 3 * STEPS // 4, began)
    follow(session, until=lambda: "locked" in session.report().error)
    locked.end()
    train(training, 3 * STEPS // 4 + 1, STEPS, began)
    follow(session, until=lambda: "locked" not in session.report().error and newest(sqlite_uri) >= STEPS - 100)
    assert delivered_page("metrics_until") < training.journal.bytes_written / 2, "nothing was put off"
    session.claim.release()
    training.end(Closing("finished", "", STEPS, began + STEPS / 1000))
    report = deliver_session(training.folder)
    assert (report.delivered, report.error) == (1, "")
    return report.run_ids[0]


@pytest.mark.slow
def test_what_a_locked_database_could_not_take_is_filled_in_at_the_end(delivered, sqlite_uri):
    client = MlflowClient(sqlite_uri)
    curve = Counter(point.step for point in client.get_metric_history(delivered, metric_key(Signal("loss"))))
    assert sorted(curve) == [1, *range(ASKED, STEPS + 1, ASKED)]
    assert set(curve.values()) == {1}
    kept = bookkeeping(delivered, sqlite_uri)
    assert kept["metrics_every"] == ASKED
    assert kept["ended"] == "finished"
