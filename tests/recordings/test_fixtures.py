"""Every recorded run is diagnosed as what it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlflow_stability.analysis.diagnose import diagnose, history_of
from mlflow_stability.cli.main import run as run_command
from mlflow_stability.kinds.catalog import read_detectors
from mlflow_stability.kinds.panel import replay
from mlflow_stability.tracking.artifacts import read_line
from mlflow_stability.tracking.read.run_record import read_part
from mlflow_stability.vocabulary.result import Severity, Source
from mlflow_stability.vocabulary.result.finding import Finding
from mlflow_stability.vocabulary.run import Opening

EXPERIMENT = Path(__file__).parents[2] / "mlruns_fixtures" / "0"
"""Runs of earlier versions, whose findings have no facts; experiment 1 holds runs with facts."""
OLD_RUNS = sorted(file.parent for file in EXPERIMENT.glob("*/meta.yaml"))
RUNS = [*OLD_RUNS, *sorted(file.parent for file in EXPERIMENT.with_name("1").glob("*/meta.yaml"))]


def expected_of(run: Path) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((run / "expected.json").read_text())
    return expected


def name_of(run: Path) -> str:
    return f"{run.parent.name}/{run.name}"


def test_there_are_recorded_runs_of_every_ordinary_failure() -> None:
    assert {run.name for run in RUNS} >= {
        "healthy",
        "loss_spike",
        "divergence",
        "nan_bad_batch",
        "nan_overflow",
        "gradient_explosion",
        "vanishing_gradients",
        "plateau_at_chance",
        "overfitting",
        "oscillation",
        "learning_rate_jump",
        "crash",
        "kill",
        "rescue",
        "dead_units",
        "attention_collapse",
        "sdr_collapse",
    }


@pytest.mark.parametrize("run", RUNS, ids=name_of)
def test_a_recorded_run_is_diagnosed_as_what_it_is(run: Path) -> None:
    expected, diagnosis = expected_of(run), diagnose(run)
    assert diagnosis.format == "recorded"
    assert diagnosis.outcome == expected["outcome"], diagnosis.verdict
    serious = [finding for finding in diagnosis.findings if finding.severity >= Severity.WARNING]
    wanted = expected["issues"]
    assert sorted((finding.kind, finding.severity.name) for finding in serious) == sorted(
        (row["issue_type"], row["severity"]) for row in wanted
    ), diagnosis.verdict
    for row in wanted:
        (episode,) = [first for first in serious if first.kind == row["issue_type"]]
        first, last = row["steps"]
        assert first <= episode.start <= last, episode
    assert (diagnosis.cause.name if diagnosis.cause else None) == expected["cause"], diagnosis.cause


@pytest.mark.parametrize("run", RUNS, ids=name_of)
def test_what_was_judged_live_is_what_the_record_gives_when_it_is_judged_again(run: Path) -> None:
    stability = run / "artifacts" / "stability"
    result = [
        read_line(line) for file in sorted(stability.glob("**/events/*")) for line in file.read_text().splitlines()
    ]
    (opening,) = [item for item in result if isinstance(item, Opening)]
    live = [finding for finding in result if isinstance(finding, Finding) and finding.source is not Source.REPORTED]
    (part,) = stability.glob("**/record/*.parquet")
    again = replay(read_part(part).readings(), read_detectors(opening.detectors))
    assert [_plain(item) for item in again] == [_plain(item) for item in live]


def _plain(event: Finding) -> tuple[object, ...]:
    """An event as it was recorded: these runs are older than the score of a finding."""
    evidence = {name: value for name, value in event.metrics.items() if name != "score"}
    return event.step, event.kind, event.severity, event.message, event.place, repr(evidence), event.time


@pytest.mark.slow
def test_a_whole_folder_of_runs_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["diagnose", str(EXPERIMENT), "--output-format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert {Path(row["source"]).name for row in document["runs"]} == {run.name for run in RUNS}
    assert document["errors"] == []


@pytest.mark.parametrize("run", RUNS, ids=name_of)
def test_the_exit_code_says_whether_anything_is_wrong(run: Path) -> None:
    assert run_command(["diagnose", str(run)]) == expected_of(run)["exit_code"]


def test_the_fixtures_name_no_machine_and_no_person() -> None:
    for run in RUNS:
        for file in run.rglob("*"):
            if file.is_file() and file.suffix not in (".parquet", ".npz"):
                text = file.read_text()
                assert "/tmp" not in text, file
                assert "trainings.py" not in text, file
                assert '"host": "v' not in text, file


def test_a_recorded_run_has_what_the_script_logged_too() -> None:
    history = history_of(EXPERIMENT / "overfitting")
    heard, logged = history.of("val_loss")
    assert logged.name == "val_loss"
    assert logged.meaning.duplicate_of == heard.name  # it is judged once
