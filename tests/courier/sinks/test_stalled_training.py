"""A training that hangs says so in its run, while it hangs."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from courier.staging import Training, reading
from mlflow import MlflowClient
from waiting import wait_until

from mlflow_stability.tracking.read.run_reader import RunReader
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import Closing


def train_until(training: Training, ended: float, first: int = 1) -> None:
    """Twenty steps of a falling loss, a tenth of a second each, of which the last ended then."""
    for number in range(20):
        measured = reading(first + number)
        values = (1 / measured.step, *measured.values[1:])
        training.journal.append(replace(measured, values=values, time=ended - (19 - number) / 10))


def stalls(run_id: str, uri: str) -> list[Finding]:
    items = [item for _, item in RunReader(run_id, uri).event_lines()]
    return [finding for finding in items if isinstance(finding, Finding) and finding.kind == "stall"]


@pytest.mark.fault
def test_a_hanging_training_is_reported_and_becomes_a_pause_once_it_continues(tmp_path: Path, sqlite_uri: str) -> None:
    client = MlflowClient(sqlite_uri)
    run_id = client.create_run("0").info.run_id
    training = Training(tmp_path / "journals", sqlite_uri, run_id=run_id)
    train_until(training, time.time() - 100)
    courier = training.start_courier()
    try:
        wait_until(lambda: client.get_run(run_id).data.tags.get("stability.findings") == "1 critical")
        (stall,) = wait_until(lambda: stalls(run_id, sqlite_uri))
        assert (stall.step, stall.severity) == (20, Severity.CRITICAL)
        train_until(training, time.time(), first=21)
        training.end(Closing("finished", "", 40, time.time()))
        assert courier.wait(60) == 0
    finally:
        courier.kill()
        courier.wait()
    (pause,) = stalls(run_id, sqlite_uri)
    assert pause.severity is Severity.INFO
    assert "then training continued" in pause.message
    assert client.get_run(run_id).data.tags["stability.findings"] == "none"


@pytest.mark.fault
def test_an_idle_notebook_is_not_a_stall(tmp_path: Path, sqlite_uri: str) -> None:
    client = MlflowClient(sqlite_uri)
    run_id = client.create_run("0").info.run_id
    training = Training(tmp_path / "journals", sqlite_uri, run_id=run_id, interactive=True)
    train_until(training, time.time() - 100)
    courier = training.start_courier()
    try:
        wait_until(lambda: client.get_run(run_id).data.tags.get("mlflow.stability.last_step") == "20")
        assert client.get_run(run_id).data.tags["stability.findings"] == "none"
    finally:
        courier.kill()
        courier.wait()
        training.end()
    assert stalls(run_id, sqlite_uri) == []
