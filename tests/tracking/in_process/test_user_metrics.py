"""Every way in which a script's metrics come to MLflow, on a real store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import mlflow
import pytest
import torch
from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

from mlflow_stability.tracking.in_process import LoggedMetric, UserMetrics


@pytest.fixture
def run_id(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    mlflow.set_tracking_uri(sqlite_uri)
    yield mlflow.start_run().info.run_id
    mlflow.end_run()
    mlflow.set_tracking_uri(None)


@pytest.fixture
def heard() -> Iterator[list[LoggedMetric]]:
    metrics: list[LoggedMetric] = []
    ear = UserMetrics(metrics.append)
    ear.install()
    yield metrics
    ear.remove()
    assert ear.failure is None


def now() -> int:
    return int(time.time() * 1000)


def by_lightning(run_id: str) -> None:
    from lightning.pytorch.loggers import MLFlowLogger

    MLFlowLogger(run_id=run_id, tracking_uri=mlflow.get_tracking_uri()).log_metrics({"val_loss": 0.5}, step=7)


WAYS: dict[str, Callable[[str], Any]] = {
    "log_metric": lambda _: mlflow.log_metric("val_loss", 0.5, step=7),
    "log_metric without waiting": lambda _: mlflow.log_metric("val_loss", 0.5, step=7, synchronous=False).wait(),
    "log_metrics": lambda _: mlflow.log_metrics({"val_loss": 0.5}, step=7),
    "log_metrics without waiting": lambda _: mlflow.log_metrics({"val_loss": 0.5}, 7, synchronous=False).wait(),
    "a client's log_metric": lambda run_id: MlflowClient().log_metric(run_id, "val_loss", 0.5, step=7),
    "a client's log_metric by name": lambda run_id: MlflowClient().log_metric(
        run_id=run_id, key="val_loss", value=0.5, step=7
    ),
    "a client's log_metric in order": lambda run_id: MlflowClient().log_metric(run_id, "val_loss", 0.5, now(), 7),
    "a client's log_batch": lambda run_id: MlflowClient().log_batch(run_id, [Metric("val_loss", 0.5, now(), 7)]),
    "a client's log_batch by name": lambda run_id: MlflowClient().log_batch(
        run_id=run_id, metrics=[Metric("val_loss", 0.5, now(), 7)]
    ),
    "Lightning's logger": by_lightning,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore")
def test_a_metric_is_received_once_whichever_way_it_is_logged(way: str, run_id: str, heard: list[LoggedMetric]) -> None:
    WAYS[way](run_id)
    assert [(point.run_id, point.key, point.value, point.step) for point in heard] == [(run_id, "val_loss", 0.5, 7)]
    assert [point.value for point in MlflowClient().get_metric_history(run_id, "val_loss")] == [0.5]


def test_a_metric_without_a_step_is_received_without_a_step(run_id: str, heard: list[LoggedMetric]) -> None:
    MlflowClient().log_metric(run_id, "val_loss", 0.25)
    mlflow.log_metric("val_loss", 0.25)  # MLflow's own way to say that there is none
    assert [point.step for point in heard] == [None, 0]


def test_a_metric_from_another_thread_is_received(run_id: str, heard: list[LoggedMetric]) -> None:
    def log() -> None:
        MlflowClient().log_metric(run_id, "val_loss", 0.5)

    threads = [threading.Thread(target=log) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(heard) == 4


def test_a_failing_call_fails_as_usual_and_its_metric_is_not_received(run_id: str, heard: list[LoggedMetric]) -> None:
    with pytest.raises(MlflowException, match="a//b"):
        mlflow.log_metric("a//b", 0.5)
    with pytest.raises(MlflowException):
        mlflow.log_metric("val_loss", "a word")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="log_metric"):
        MlflowClient().log_metric(run_id)  # type: ignore[call-arg]
    assert heard == []


def test_an_error_of_ours_does_not_reach_the_call_of_the_script(run_id: str) -> None:
    def fail(_: LoggedMetric) -> None:
        raise ValueError("ours")

    ear = UserMetrics(fail)
    ear.install()
    mlflow.log_metric("val_loss", 0.5)
    mlflow.log_metric("val_loss", 0.6)
    ear.remove()
    assert str(ear.failure) == "ours"
    assert [point.value for point in MlflowClient().get_metric_history(run_id, "val_loss")] == [0.5, 0.6]


def test_removing_leaves_the_very_functions_that_were_there() -> None:
    before = dict(vars(MlflowClient))
    ear = UserMetrics(lambda _: None)
    for _ in range(2):
        ear.install()
        ear.install()
        assert MlflowClient.log_metric is not before["log_metric"]
        ear.remove()
        assert dict(vars(MlflowClient)) == before


def test_a_later_patch_of_other_code_stays_and_alone_receives_metrics(
    run_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics: list[LoggedMetric] = []
    ear = UserMetrics(metrics.append)
    untouched = MlflowClient.log_metric
    ear.install()
    ours, theirs = MlflowClient.log_metric, []

    def on_top(*args: Any, **kwargs: Any) -> Any:
        theirs.append(args)
        return ours(*args, **kwargs)

    monkeypatch.setattr(MlflowClient, "log_metric", on_top)
    ear.remove()
    mlflow.log_metric("val_loss", 0.5)
    assert (len(theirs), metrics) == (1, [])
    monkeypatch.setattr(MlflowClient, "log_metric", untouched)
    assert [point.value for point in MlflowClient().get_metric_history(run_id, "val_loss")] == [0.5]


def test_a_tensor_is_received_as_the_script_passed_it(run_id: str, heard: list[LoggedMetric]) -> None:
    loss = torch.tensor(0.5)
    mlflow.log_metric("val_loss", loss)  # type: ignore[arg-type]
    assert heard[0].value is loss
    assert heard[0].run_id == run_id
