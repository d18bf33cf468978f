"""Validation losses that the script logs itself are judged while it trains, and are in MLflow once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mlflow import MlflowClient
from torch import nn

from mlflow_stability import diagnose, load_run
from mlflow_stability.courier.deliver import ask_for_short_requests, deliver_session
from mlflow_stability.journal.journal import JOURNAL, read_journal
from mlflow_stability.journal.layout import RELEASED
from mlflow_stability.kinds.catalog import default_detectors, describe
from mlflow_stability.probes.hooks.guarded_hooks import PartGuard
from mlflow_stability.probes.hooks.torch_hooks import TorchWatch
from mlflow_stability.probes.step.step_meter import StepMeter
from mlflow_stability.session.recording.recording import Recording
from mlflow_stability.session.recording.script_metrics import ScriptMetrics
from mlflow_stability.tracking.in_process import LoggedMetric
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Closing, Opening

pytestmark = pytest.mark.usefixtures("blank_pictures")

VAL, THEIR_STEP = Signal("val_loss"), Signal("val_loss_step")


@pytest.fixture
def store(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    ask_for_short_requests()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    mlflow.set_tracking_uri(sqlite_uri)
    yield sqlite_uri
    while mlflow.active_run():
        mlflow.end_run()
    mlflow.set_tracking_uri(None)


@pytest.fixture
def heard() -> Iterator[ScriptMetrics]:
    metrics = ScriptMetrics()
    metrics.install()
    yield metrics
    metrics.remove()


class Recorded:
    """A training whose steps and validation losses go into one recording, as the session binds them."""

    def __init__(self, folder: Path, uri: str, run_id: str, heard: ScriptMetrics) -> None:
        guard = PartGuard(strict=True, on_failure=lambda part, error: None)
        detectors = default_detectors()
        self.folder = folder
        folder.mkdir(mode=0o700)
        self.recording = Recording(
            folder / "000-here",
            Opening(
                run_id[:8],
                os.getpid(),
                psutil.Process().create_time(),
                "here",
                time.time(),
                tracking_uri=uri,
                run_id=run_id,
                detectors=describe(detectors),
            ),
            detectors,
            guard,
            lambda event: None,
        )
        self._run_id, self._heard = run_id, heard
        self._meter = StepMeter(guard, self._recording_for, lambda recording, reading: recording.record(reading))
        self._watch = TorchWatch(guard, self._meter)
        self._watch.install()

    def _recording_for(self, _optimizer: Any) -> Recording:
        self.recording.record_script_metrics(self._heard.take(self._run_id))
        return self.recording

    def end(self) -> list[Any]:
        """Close it; what the journal says."""
        self._watch.remove()
        self._meter.drain()
        self.recording.record_script_metrics(self._heard.take(self._run_id))
        self.recording.close(Closing("finished", run_was_active=False))
        return read_journal(self.recording.folder / JOURNAL)

    def deliver(self) -> None:
        (self.folder / RELEASED).touch()
        report = deliver_session(self.folder)
        assert report.error == ""


def overfit(steps: int, every: int) -> None:
    """Memorise sixteen random labels, and log how well others are predicted."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    inputs, targets = torch.randn(16, 8), torch.randn(16, 1)
    others, truths = torch.randn(64, 8), torch.randn(64, 1)
    for step in range(1, steps + 1):
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % every == 0:
            with torch.no_grad():
                mlflow.log_metric("val_loss", nn.functional.mse_loss(model(others), truths), step=step // every)
                mlflow.log_metric("accuracy", step / steps, step=step // every)


@pytest.mark.slow
def test_overfitting_is_found_live_and_nothing_is_logged_twice(
    tmp_path: Path, store: str, heard: ScriptMetrics
) -> None:
    run_id = mlflow.start_run().info.run_id
    training = Recorded(tmp_path / "journal", store, run_id, heard)
    overfit(steps=200, every=10)
    mlflow.end_run()
    records = training.end()
    (record,) = [record for record in records if isinstance(record, Finding) and record.kind == "overfitting"]
    heard_at = [record.step for record in records if isinstance(record, StepReading) and VAL in record.signals]
    assert heard_at == list(range(10, 201, 10))
    assert record.step in heard_at
    assert record.step < 200

    training.deliver()
    client = MlflowClient()
    keys = client.get_run(run_id).data.metrics
    assert len(client.get_metric_history(run_id, "val_loss")) == 20
    assert [key for key in keys if "val_loss" in key] == ["val_loss"]
    # The last step is a point of its own, though the last record of the journal is what was heard after it.
    assert client.get_metric_history(run_id, "stability/loss")[-1].step == 200

    table = load_run(run_id)
    assert table["step"].tolist() == list(range(1, 201))
    values = table.dropna(subset=["val_loss"])
    assert values["step"].tolist() == heard_at
    assert values["val_loss"].tolist() == [point.value for point in client.get_metric_history(run_id, "val_loss")]
    assert values["val_loss_step"].tolist() == list(range(1, 21))

    diagnosis = diagnose(run_id)
    assert [finding.kind for finding in diagnosis.findings].count("overfitting") == 1


def test_a_validation_loss_logged_without_steps_is_judged_at_those_of_the_training(
    tmp_path: Path, store: str, heard: ScriptMetrics
) -> None:
    run_id = mlflow.start_run().info.run_id
    training = Recorded(tmp_path / "journal", store, run_id, heard)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for value in (0.9, float("nan"), 0.7):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        MlflowClient().log_metric(run_id, "eval_loss", value)
    records = training.end()
    readings = [record for record in records if isinstance(record, StepReading) and VAL in record.signals]
    assert [reading.step for reading in readings] == [1, 2, 3]
    assert [reading.signals for reading in readings] == [(VAL,)] * 3
    assert "nan_detected" not in [record.kind for record in records if isinstance(record, Finding) and record.step != 2]


def test_two_runs_after_each_other_each_keep_their_own(tmp_path: Path, store: str, heard: ScriptMetrics) -> None:
    result = []
    for number, name in enumerate(("val_loss", "eval_loss")):
        run_id = mlflow.start_run().info.run_id
        mlflow.log_metric(name, number + 0.5, step=number)
        result.append([(reading.signals[0], reading.values) for reading in heard.take(run_id)])
        mlflow.end_run()
    assert result == [[(VAL, (0.5, 0.0))], [(VAL, (1.5, 1.0))]]


def test_metrics_of_another_run_and_those_of_the_training_are_let_go(store: str, heard: ScriptMetrics) -> None:
    client = MlflowClient()
    other = client.create_run("0").info.run_id
    run_id = mlflow.start_run().info.run_id
    client.log_metric(other, "val_loss", 9.0)
    mlflow.log_metrics({"loss": 1.0, "lr": 0.1, "val_loss": 0.5, "val_acc": 0.9, "epoch": 1}, step=1)
    assert [reading.values for reading in heard.take(run_id)] == [(0.5, 1.0)]
    mlflow.log_metrics({"loss": 1.0, "lr": 0.1, "epoch": 2}, step=2)
    assert not heard.waiting


def test_losses_of_several_domains_each_have_their_place(store: str, heard: ScriptMetrics) -> None:
    run_id = mlflow.start_run().info.run_id
    mlflow.log_metrics({"train_loss": 1.0, "val_loss": 0.5, "val_loss_books": 0.6, "val_loss_web": 0.7}, step=1)
    assert [item.signals[0].place for item in heard.take(run_id)] == ["", "books", "web"]


def test_a_name_keeps_its_meaning_when_others_come(store: str, heard: ScriptMetrics) -> None:
    run_id = mlflow.start_run().info.run_id
    mlflow.log_metric("val_loss_books", 0.6)
    (first,) = heard.take(run_id)
    mlflow.log_metrics({"val_loss_web": 0.7, "val_loss_books": 0.8})
    later = {reading.values[0]: reading.signals[0] for reading in heard.take(run_id)}
    assert later[0.8] == first.signals[0]
    assert later[0.7] != first.signals[0]


def test_metrics_logged_before_the_run_is_known_are_kept_for_it(store: str, heard: ScriptMetrics) -> None:
    run_id = mlflow.start_run().info.run_id
    mlflow.log_metric("val_loss", 0.6)
    assert heard.take(None) == []
    assert [reading.values[0] for reading in heard.take(run_id)] == [0.6]


def test_threads_that_log_while_it_is_taken_lose_nothing(store: str) -> None:
    heard = ScriptMetrics()
    taken: list[float] = []

    def log(thread: int) -> None:
        for number in range(200):
            heard._heard(LoggedMetric("run", f"val_loss_{thread}", number, number))

    threads = [threading.Thread(target=log, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken += [reading.values[0] for reading in heard.take("run")]
    taken += [reading.values[0] for reading in heard.take("run")]
    assert len(taken) == 800


def test_a_number_of_any_make_is_taken_as_mlflow_takes_it() -> None:
    import numpy as np

    heard = ScriptMetrics()
    for value in (1, 1.0, np.float32(1), np.array([1.0]), torch.tensor(1.0), torch.ones(1, dtype=torch.bfloat16)):
        heard._heard(LoggedMetric("run", "val_loss", value, 1))
    assert [reading.values[0] for reading in heard.take("run")] == [1.0] * 6


WORDS = "loss train_loss val_loss val_loss_books valid/loss eval_loss test_loss val_loss_epoch val_loss_step val_nll"
NAMES = st.lists(st.sampled_from([*WORDS.split(), "nll", "lr", "epoch", "val_acc", "loss/val"]), max_size=30)


@given(NAMES, st.integers(1, 5))
def test_no_two_names_ever_share_a_series(names: list[str], often: int) -> None:
    heard = ScriptMetrics()
    owner: dict[Signal, float] = {}
    numbers = {name: float(number) for number, name in enumerate(dict.fromkeys(names))}
    for begin in range(0, len(names), often):
        for name in names[begin : begin + often]:
            heard._heard(LoggedMetric("run", name, numbers[name], None))
        for reading in heard.take("run"):
            assert reading.signals[0].quantity == "val_loss"
            assert owner.setdefault(reading.signals[0], reading.values[0]) == reading.values[0]
    assert bool(owner) or not {"val_loss", "eval_loss", "valid/loss"} & set(names)


def test_the_number_of_values_kept_for_an_unrecorded_run_is_limited() -> None:
    heard = ScriptMetrics()
    for number in range(12_000):
        heard._heard(LoggedMetric("run", "val_loss", number, number))
    taken = heard.take("run")
    assert (len(taken), taken[-1].values[0]) == (10_000, 11_999.0)
