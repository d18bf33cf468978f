"""Every simulation is trained beside its twin, and its diagnosis names a right cause."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
from forked.processes import python

from mlflow_stability import diagnose, simulate
from mlflow_stability.cli.main import run
from mlflow_stability.demo.catalog import SIMULATIONS, known_simulation
from mlflow_stability.demo.training import failure_of
from mlflow_stability.diagnosis.causes.catalog import causes
from mlflow_stability.errors import SettingsError

HEALTHY_ENDS = ("healthy", "cannot_tell")


@pytest.mark.slow
@pytest.mark.scenario
def test_the_diagnosis_of_a_simulation_names_a_right_cause(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "bad-batch"  # the benchmark `simulations` has them all
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    monkeypatch.setattr(sys, "executable", python())
    done = simulate(name)
    assert done.found, f"{done.cause}: {done.diagnosis.verdict}"
    assert done.healthy_run_id != done.run_id
    assert diagnose(done.healthy_run_id, sqlite_uri).outcome in HEALTHY_ENDS
    assert {card.source for card in done.comparison.cards} == {done.healthy_run_id, done.run_id}
    onset = failure_of(name, None).onset
    assert done.losses[: onset - 1] == done.healthy_losses[: onset - 1]


@pytest.mark.slow
@pytest.mark.scenario
def test_whoever_practises_sees_the_curves_and_not_the_answer(
    sqlite_uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    monkeypatch.setattr(sys, "executable", python())
    assert run(["simulate", "missing-zero-grad", "--no-answer", "--steps", "300"]) == 0
    printed = capsys.readouterr().out
    assert "What went wrong, and why?" in printed
    assert "mlflow-stability diagnose" in printed
    assert "zero" not in printed
    assert "cleared" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    (run_id,) = re.findall(r"mlflow-stability diagnose (\w+)", printed)
    cause = diagnose(run_id, sqlite_uri).cause
    assert cause is not None
    assert cause.name in failure_of("missing-zero-grad", None).causes


def test_every_simulation_is_listed_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["simulate", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, (_, what) in SIMULATIONS.items():
        assert [line for line in lines if line.split()[:1] == [name] and what in line]
    assert run(["simulate"]) == 0


@pytest.mark.parametrize("name", SIMULATIONS)
def test_a_simulation_has_a_task_and_causes_that_there_are(name: str) -> None:
    module, _, attribute = SIMULATIONS[name][0].partition(":")
    assert hasattr(importlib.import_module(f"mlflow_stability.demo.{module}"), attribute)
    failure = failure_of(name, None)
    assert failure.causes
    assert set(failure.causes) <= set(causes())


def test_a_name_that_is_nearly_right_is_suggested(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert known_simulation("Bad_Batch") == "bad-batch"
    with pytest.raises(SettingsError, match="Did you mean bad-batch"):
        known_simulation("bad-bach")
    assert run(["simulate", "nothing-of-the-kind-at-all"]) == 2
    assert "There are: learning-rate-too-high" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
