from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from architecture.repository import ROOT
from findings import at_step
from mlflow import MlflowClient
from mlflow.entities import Metric
from waiting import wait_until

from mlflow_stability.cli.main import run
from mlflow_stability.courier.progress import Delivered
from mlflow_stability.journal.journal import JournalWriter
from mlflow_stability.journal.layout import new_session_folder
from mlflow_stability.tracking.keys import metric_key
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import Closing, Opening

SIGNALS = (Signal("loss"), Signal("grad_norm"))
WATCH = [sys.executable, "-m", "mlflow_stability", "watch"]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[JournalWriter]:
    """The journal of a training in this process, in the directory where one would be looked for."""
    session = new_session_folder(tmp_path / ".mlflow-stability")
    writer = JournalWriter(session / "000-a", Opening("a", os.getpid(), 0.0, "here", time.time()))
    for step in range(1, 101):
        writer.append(StepReading(step, SIGNALS, (3.0 - step / 100, 2.5), 0, 1000.0 + step / 4))
    writer.append(at_step(60, "loss_spike", Severity.WARNING, "loss 7.47 at step 60."))
    yield writer
    writer.close()


def stored(uri: str, name: str, *, ended: bool = True) -> str:
    client = MlflowClient(tracking_uri=uri)
    run_id = str(client.create_run("0", run_name=name).info.run_id)
    points = [Metric(metric_key(item), 2.0 + 1 / step, 250 * step, step) for step in range(1, 201) for item in SIGNALS]
    client.log_batch(run_id, points)
    if ended:
        client.set_terminated(run_id)
    return run_id


def test_the_newest_training_in_this_directory_is_read_from_its_journal(
    journal: JournalWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["watch", "--once", "--tracking-uri", "http://127.0.0.1:9"]) == 0
    printed = capsys.readouterr().out
    assert "training  step 100" in printed
    assert "4 steps/s" in printed or "last step" in printed
    assert "1 WARNING loss_spike  step 60  loss 7.47 at step 60." in printed


def test_a_run_with_a_local_journal_is_read_from_it(journal: JournalWriter, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = "0123456789abcdef" * 2
    Delivered(journal.folder, "a", run_id, offset=1000).save()
    assert run(["watch", run_id, "--once", "--tracking-uri", "http://127.0.0.1:9"]) == 0
    printed = capsys.readouterr().out
    assert "run 0123456789ab  training  step 1,100" in printed
    assert "step 1,060" in printed


def test_the_command_ends_with_the_training_and_prints_each_finding_once(
    journal: JournalWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.append(Closing("crashed", "ValueError: x", 100))
    assert run(["watch"]) == 0
    finding, last = capsys.readouterr().out.splitlines()
    assert finding == "WARNING loss_spike at step 60: loss 7.47 at step 60."
    assert last == "crashed: step 100  loss 2  gradient norm 2.5 (healthy)  4 steps/s"


@pytest.mark.parametrize("named", ["twin", "--last"])
def test_any_other_run_is_read_from_the_store(named: str, sqlite_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    stored(sqlite_uri, "twin")
    assert run(["watch", named, "--once", "--tracking-uri", sqlite_uri]) == 0
    printed = capsys.readouterr().out
    assert "twin  finished  step 200  4 steps/s" in printed
    assert "No warnings so far." in printed


def test_watching_a_run_without_our_metrics_ends_with_code_2_and_advice(
    sqlite_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = MlflowClient(tracking_uri=sqlite_uri).create_run("0").info.run_id
    assert run(["watch", run_id, "--once", "--tracking-uri", sqlite_uri]) == 2
    errors = capsys.readouterr().err
    assert "has no metrics of mlflow-stability yet; the first arrive a few seconds after the first steps" in errors
    assert "call mlflow_stability.autolog() in its script" in errors
    assert f"`mlflow-stability diagnose {run_id[:8]}`" in errors
    MlflowClient(tracking_uri=sqlite_uri).set_terminated(run_id)
    assert run(["watch", run_id, "--once", "--tracking-uri", sqlite_uri]) == 2
    assert "has no metrics of mlflow-stability. To record" in capsys.readouterr().err


def test_ctrl_c_ends_the_command_without_an_error(journal: JournalWriter, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("w") as file:
        watching = subprocess.Popen(
            WATCH, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=file, stderr=file
        )
    wait_until(lambda: "step 100" in out.read_text(), 120)
    watching.send_signal(signal.SIGINT)
    assert watching.wait(60) == 0
    assert "Traceback" not in out.read_text()
    assert "^C" not in out.read_text()


@pytest.mark.slow
def test_a_run_whose_journal_is_delivered_and_removed_is_followed_in_the_store(
    journal: JournalWriter, sqlite_uri: str, tmp_path: Path
) -> None:
    Delivered(journal.folder, "a", stored(sqlite_uri, "moved")).save()
    out = tmp_path / "out"
    with out.open("w") as file:
        command = [*WATCH, "--interval", "0.1", "--tracking-uri", sqlite_uri]
        within = {**os.environ, "PYTHONPATH": str(ROOT)}
        watching = subprocess.Popen(command, cwd=tmp_path, env=within, stdout=file, stderr=file)
    wait_until(lambda: "step 100" in out.read_text(), 120)
    journal.folder.rename(tmp_path / "away")
    assert watching.wait(60) == 0
    assert out.read_text().splitlines()[-1].startswith("finished: step 200")
