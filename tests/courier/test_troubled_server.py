import time

import pytest
from courier.staging import Training, bookkeeping
from findings import at_step
from mlflow import MlflowClient

from mlflow_stability.analysis.load import load_run
from mlflow_stability.courier.deliver import SessionDelivery, ask_for_short_requests, deliver_session
from mlflow_stability.courier.processes import MemoryWatch
from mlflow_stability.courier.progress import read_page
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import Closing

pytestmark = pytest.mark.slow


@pytest.fixture
def training(tmp_path, troubled_server):
    ask_for_short_requests()
    training = Training(tmp_path / ".mlflow-stability", troubled_server.url)
    training.train(1, 200)
    training.journal.append(at_step(200, "loss_spike", Severity.WARNING, "spike"))
    return training


def everything_is_there(url, run_id, last=200):
    table = load_run(run_id, url)
    steps = [point.step for point in MlflowClient(url).get_metric_history(run_id, "stability/loss")]
    return table["step"].tolist() == list(range(1, last + 1)) and steps == [1, *range(10, last + 1, 10)]


def follow(session, seconds=60.0, until=lambda: False):
    end = time.monotonic() + seconds
    while not session.over and not until() and time.monotonic() < end:
        session.advance()
        time.sleep(0.02)


@pytest.mark.parametrize("mood", ["down", "failing"])
def test_a_server_that_is_away_at_the_start_gets_everything_when_it_is_back(training, troubled_server, mood):
    troubled_server.mood = mood
    session = SessionDelivery(training.folder, None, MemoryWatch().has_killed)
    follow(session, until=lambda: read_page(training.folder / "status.json").get("away_since"))
    status = read_page(training.folder / "status.json")
    assert status["state"] == "waiting"
    assert status["error"]
    assert len(troubled_server.requests) < 10
    troubled_server.mood = "up"
    training.end(Closing("finished", "", 200))
    follow(session)
    assert session.over
    assert everything_is_there(troubled_server.url, session.report().run_ids[0])


@pytest.mark.parametrize("mood", ["down", "failing"])
def test_a_server_that_goes_away_in_the_middle_loses_nothing(training, troubled_server, mood):
    session = SessionDelivery(training.folder, None, MemoryWatch().has_killed)
    follow(session, until=lambda: session.caught_up)
    for _ in range(2):
        troubled_server.mood = mood
        follow(session, seconds=1.5)
        troubled_server.mood = "up"
        follow(session, seconds=1.5)
    troubled_server.mood = mood
    training.end(Closing("finished", "", 200))
    follow(session, seconds=1.5)
    assert not session.over
    troubled_server.mood = "up"
    follow(session)
    assert everything_is_there(troubled_server.url, session.report().run_ids[0])


def test_a_slow_server_gets_everything(training, troubled_server):
    troubled_server.mood, troubled_server.slowness = "slow", 0.2
    training.end(Closing("finished", "", 200))
    report = deliver_session(training.folder)
    assert report.delivered == 1
    troubled_server.mood = "up"
    assert everything_is_there(troubled_server.url, report.run_ids[0])


def test_one_metric_that_is_refused_holds_up_nothing_else(training, troubled_server):
    troubled_server.refused_metric = "stability/grad_norm"
    training.end(Closing("finished", "", 200))
    report = deliver_session(training.folder)
    assert report.refused == ("stability/grad_norm",)
    (run_id,) = report.run_ids
    assert everything_is_there(troubled_server.url, run_id)
    run = MlflowClient(troubled_server.url).get_run(run_id)
    assert list(bookkeeping(run_id, troubled_server.url)["refused"]) == ["stability/grad_norm"]
    assert "stability/grad_norm" not in run.data.metrics
    assert run.info.status == "FINISHED"


def test_a_run_is_made_once_though_the_answer_was_lost(training, troubled_server):
    client = MlflowClient(troubled_server.url)
    before = len(client.search_runs(["0"], max_results=1000))
    troubled_server.lose_answers_to = "/runs/create"
    training.end(Closing("finished", "", 200))
    report = deliver_session(training.folder)
    assert report.delivered == 1
    assert len(client.search_runs(["0"], max_results=1000)) == before + 1


def test_the_journal_stays_when_the_server_does_not_come_back(training, troubled_server):
    troubled_server.mood = "down"
    training.end(Closing("finished", "", 200))
    report = deliver_session(training.folder, linger=1.0)
    assert report.remaining == 1
    assert report.waiting_bytes > 0
    assert "Could not" in report.error
    troubled_server.mood = "up"
    assert deliver_session(training.folder).delivered == 1


def test_the_password_in_the_tracking_uri_is_written_nowhere(tmp_path, troubled_server):
    ask_for_short_requests()
    plain = troubled_server.url
    secret = plain.replace("//", "//user:s3cret@")
    training = Training(tmp_path / ".mlflow-stability", plain)
    training.train(1, 20)
    troubled_server.mood = "failing"
    session = SessionDelivery(training.folder, secret, MemoryWatch().has_killed)
    follow(session, seconds=4)
    troubled_server.mood = "up"
    follow(session, seconds=5, until=lambda: session.caught_up)
    written = b"".join(path.read_bytes() for path in training.folder.rglob("*") if path.is_file())
    assert b"s3cret" not in written
    training.end(Closing("finished", "", 20))
    follow(session)
    run = MlflowClient(plain).get_run(session.report().run_ids[0])
    assert "s3cret" not in str(run.data.tags)
