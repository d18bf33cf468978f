"""A training whose steps no hook sees says so once; no other process is mentioned."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest
import torch
from forked.processes import python, start
from session import unseen

import mlflow_stability

SAID = "and no optimizer step, so nothing is recorded"
SCRIPT = Path(unseen.__file__)


FAILED = {"crashed": 1, "exited": 1, "left": 1, "interrupted": 130}
TIMEOUT_SECONDS = 120


def environment() -> dict[str, str]:
    return {**os.environ, "MLFLOW_STABILITY_OFFLINE": "1"}  # nothing is read from a run


def output_of(kind: str, folder: Path) -> str:
    process = start(SCRIPT, kind, str(folder / "journals"), environment=environment(), directory=folder)
    _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode is not None
    assert process.returncode % 256 in (FAILED.get(kind, 0), 254 if kind == "interrupted" else 0), errors
    return errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "signs"),
    [
        ("own_optimizer", "autolog() saw 20 backward passes"),
        ("by_torch_func", "autolog() saw forward passes with gradients"),
    ],
)
def test_an_undetected_training_is_reported_once_at_the_end_of_the_process(
    tmp_path: Path, kind: str, signs: str
) -> None:
    output = output_of(kind, tmp_path)
    assert output.count(SAID) == 1
    (line,) = [group for group in output.splitlines() if SAID in group]
    assert line.startswith(f"mlflow-stability: {signs}")
    assert "mlflow_stability.attach(model, optimizer)" in line


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*FAILED, "by_hand", "evaluation", "prediction", "compiled_step"])
def test_nothing_is_reported_for_scripts_that_are_recorded_fail_or_do_not_train(tmp_path: Path, kind: str) -> None:
    assert SAID not in output_of(kind, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["crashed"])
def test_the_run_command_does_not_report_a_failed_script_either(tmp_path: Path, kind: str) -> None:
    command = [python(), "-m", "mlflow_stability", "run", str(SCRIPT), kind, str(tmp_path / "journals")]
    done = subprocess.run(
        command, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    assert done.returncode == FAILED[kind], done.stderr
    assert SAID not in done.stderr


@pytest.fixture
def lines(
    tmp_path: Path, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[pytest.LogCaptureFixture]:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    caplog.set_level(logging.WARNING, "mlflow_stability")
    end_run = mlflow.end_run
    options = mlflow_stability.Options(journal_dir=tmp_path / "journals")
    mlflow_stability.autolog(offline=True, strict=True, options=options)
    yield caplog
    mlflow_stability.autolog(disable=True)
    assert mlflow.end_run is end_run
    assert mlflow.tracking.fluent.end_run is end_run


def message_count(lines: pytest.LogCaptureFixture) -> int:
    return sum(SAID in record.getMessage() for record in lines.records)


def test_it_is_reported_at_200_backward_passes_and_not_again(lines: pytest.LogCaptureFixture) -> None:
    unseen.own_optimizer(199)
    assert message_count(lines) == 0
    unseen.own_optimizer(300)
    mlflow_stability.autolog(disable=True)
    assert message_count(lines) == 1


def test_it_is_reported_at_the_end_of_the_run_that_has_no_steps(lines: pytest.LogCaptureFixture) -> None:
    for train, count in ((unseen.own_optimizer, 1), (unseen.healthy, 1)):
        with mlflow.start_run():
            train()
            assert message_count(lines) <= count
        assert message_count(lines) == count


@pytest.mark.parametrize("makes_optimizer", [False, True])
def test_a_forgotten_optimizer_step_is_asked_about(lines: pytest.LogCaptureFixture, makes_optimizer: bool) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01) if makes_optimizer else None
    for _ in range(30):
        unseen.loss_of(model).backward()
    mlflow_stability.autolog(disable=True)
    (line,) = [record.getMessage() for record in lines.records if SAID in record.getMessage()]
    assert ("Does the script call step() of its optimizer?" in line) is (optimizer is not None)


def test_gradients_that_are_computed_after_a_training_are_no_training(lines: pytest.LogCaptureFixture) -> None:
    with mlflow.start_run():
        unseen.healthy()
    model = torch.nn.Linear(4, 1)
    for _ in range(30):
        unseen.loss_of(model).backward()
    mlflow_stability.autolog(disable=True)
    assert message_count(lines) == 0
