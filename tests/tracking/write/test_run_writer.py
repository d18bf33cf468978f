import pytest
from mlflow import MlflowClient

from mlflow_stability.errors import RunNotFoundError, TrackingError
from mlflow_stability.tracking.client import sentence
from mlflow_stability.tracking.run_writer import RunWriter
from mlflow_stability.tracking.thinning import Point
from mlflow_stability.vocabulary.measured.signal import Signal


@pytest.fixture
def writer(sqlite_uri):
    client = MlflowClient(sqlite_uri)
    return RunWriter(client, client.create_run("0").info.run_id)


def points(count):
    return [Point(Signal("loss"), step, 1.0 / step, 100.0 + step / 8) for step in range(1, count + 1)]


def test_points_that_are_sent_twice_are_there_once(writer, sqlite_uri):
    writer.log(points(50), "stability")
    writer.log(points(80), "stability")
    assert len(MlflowClient(sqlite_uri).get_metric_history(writer.run_id, "stability/loss")) == 80


def test_a_long_tag_is_cut_and_not_refused(writer):
    writer.set_tags({"stability.x": "y" * 20_000})
    assert len(writer.tags()["stability.x"]) == 5000


def test_one_tag_that_is_refused_does_not_hold_up_the_others(writer):
    writer.set_tags({"stability.good": "1", "a//b": "2"})
    assert writer.tags()["stability.good"] == "1"
    assert list(writer.refused) == ["a//b"]


def test_a_key_that_is_a_folder_of_a_file_store_does_not_hold_up_the_others(tmp_path, monkeypatch):
    """As in a run whose statistics of the loss were recorded as `stability/loss/loss_ema`."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient(tmp_path.as_uri())
    writer = RunWriter(client, client.create_run(client.create_experiment("old")).info.run_id)
    client.log_metric(writer.run_id, "stability/loss/loss_ema", 1.0)
    writer.log([*points(3), Point(Signal("grad_norm"), 1, 2.0, 100.0)], "stability")
    assert list(writer.refused) == ["stability/loss"]
    assert client.get_run(writer.run_id).data.metrics["stability/grad_norm"] == 2.0


def test_a_deleted_run_is_not_the_fault_of_its_metrics(writer, sqlite_uri):
    MlflowClient(sqlite_uri).delete_run(writer.run_id)
    with pytest.raises(RunNotFoundError, match=writer.run_id):
        writer.log(points(3), "stability")
    assert writer.refused == {}


def test_a_server_that_is_away_is_one_sentence_without_the_password(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    writer = RunWriter(MlflowClient("http://user:s3cret@127.0.0.1:9"), "ab12")
    with pytest.raises(TrackingError) as caught:
        writer.log(points(3), "stability")
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_long_complaint_is_cut():
    assert len(sentence(ValueError("x" * 5000))) < 400
