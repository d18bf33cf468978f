from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from analysis.logs import diverging, falling
from jsonschema import Draft202012Validator
from mlflow import MlflowClient
from mlflow.entities import Metric

from mlflow_stability.analysis.card_workers import cards_from_processes
from mlflow_stability.analysis.compare import compare
from mlflow_stability.analysis.diagnose import diagnose, diagnose_all
from mlflow_stability.cli.main import run
from mlflow_stability.errors import SettingsError
from mlflow_stability.reports.formats.json import schema
from mlflow_stability.reports.report import Failure
from mlflow_stability.vocabulary.result import AskedCurves

OTHER = "aux/objective_value"


@pytest.fixture
def log() -> str:
    """Its loss falls, and another of its curves diverges."""
    rows = zip(falling(), diverging(), strict=True)
    lines = (json.dumps({"step": step, "train_loss": first, OTHER: two}) for step, (first, two) in enumerate(rows))
    Path("a.jsonl").write_text("\n".join(lines))
    return "a.jsonl"


@pytest.fixture
def stored(sqlite_uri: str) -> str:
    client = MlflowClient(tracking_uri=sqlite_uri)
    run_id: str = client.create_run("0").info.run_id
    for name, values in (("train_loss", falling()), (OTHER, diverging())):
        client.log_batch(run_id, [Metric(name, float(value), 1_000 * at, at) for at, value in enumerate(values)])
    client.set_terminated(run_id)
    return run_id


@pytest.mark.slow
def test_the_requested_curve_is_judged_in_a_log_and_in_a_run(log: str, stored: str, sqlite_uri: str) -> None:
    for source in (log, stored):
        assert diagnose(source, sqlite_uri).outcome == "healthy"
        diagnosis = diagnose(source, sqlite_uri, loss=OTHER, val_loss="train_loss")
        assert diagnosis.outcome == "diverged"
        assert (diagnosis.judged.losses, diagnosis.judged.validations) == ((OTHER,), ("train_loss",))


def test_a_metric_missing_from_one_log_does_not_stop_the_others(log: str) -> None:
    Path("b.jsonl").write_text("\n".join(json.dumps({"step": n, "train_loss": n}) for n in range(9)))
    diagnoses = list(diagnose_all([log, "b.jsonl"], loss=OTHER))
    assert isinstance(diagnoses[1], Failure)
    assert "No metric 'aux/objective_value' in b.jsonl" in diagnoses[1].message
    assert not isinstance(diagnoses[0], Failure)


def test_a_loss_that_is_not_a_metric_name_raises_a_settings_error() -> None:
    with pytest.raises(SettingsError, match="loss must be the name of a metric; got 3"):
        diagnose("a.jsonl", loss=3)  # type: ignore[arg-type]


@pytest.mark.slow
def test_runs_are_compared_by_the_requested_curve(log: str, stored: str, sqlite_uri: str) -> None:
    for _ in range(2):  # the second time cards of the usual loss may be remembered
        comparison = compare([log, stored], tracking_uri=sqlite_uri, loss=OTHER)
        assert [card.outcome for card in comparison.cards] == ["diverged", "diverged"]
        assert [card.loss for card in comparison.cards] == [OTHER, OTHER]
        assert [card.loss for card in compare([stored], tracking_uri=sqlite_uri).cards] == ["train_loss"]


@pytest.mark.slow
def test_worker_processes_judge_the_requested_curve(log: str) -> None:
    ((_, cards),) = cards_from_processes([log], 1, None, None, AskedCurves(OTHER))
    assert [card.loss for card in cards] == [OTHER]


def test_every_format_says_which_curves_were_judged(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("rich", "markdown", "html"):
        run(["diagnose", log, "--output-format", form])
        text = " ".join(capsys.readouterr().out.split())
        assert "train_loss, no validation loss (1 other curve)" in text.replace("train\\_loss", "train_loss")
    run(["diagnose", log, "--output-format", "json"])
    text = json.loads(capsys.readouterr().out)
    Draft202012Validator(schema("diagnosis")).validate(text)
    assert text["runs"][0]["judged"] == {"losses": ["train_loss"], "validations": [], "others": 1, "reasons": []}


def test_the_command_line_takes_the_names_and_helps_where_one_is_misspelt(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["diagnose", log, "--loss", OTHER]) == 1
    assert f"judged {OTHER}, no validation loss" in " ".join(capsys.readouterr().out.split())
    assert run(["diagnose", log, "--loss", "trian_loss"]) == 2
    assert "Did you mean 'train_loss'?" in capsys.readouterr().err
    assert run(["compare", log, "--loss", OTHER]) == 1
    assert run(["checklist", "--run", log, "--loss", "nothing"]) == 2
    assert "No metric 'nothing'" in capsys.readouterr().err


def test_a_metric_with_a_single_value_is_refused_as_a_curve() -> None:
    Path("one.jsonl").write_text('{"step": 1, "loss": 2.0, "once": 1.0}\n{"step": 2, "loss": 1.0}\n')
    with pytest.raises(SettingsError, match="single value"):
        diagnose("one.jsonl", loss="once")


def test_many_metrics_of_one_point_cost_little(tmp_path: Path) -> None:
    for name in range(400):
        (tmp_path / "run" / "metrics").mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / "metrics" / f"metric_{name}_loss").write_text("1600000000000 0.5 0\n")
    (tmp_path / "run" / "params").mkdir()
    diagnosis = diagnose(tmp_path / "run")
    assert (diagnosis.outcome, diagnosis.judged.losses, diagnosis.judged.others) == ("cannot_tell", (), 0)
    assert np.isfinite(diagnosis.points)


def test_a_name_like_none_is_answered_with_losses_first(capsys: pytest.CaptureFixture[str]) -> None:
    layers = {f"activation_rms@layers.{number}": 1.5 for number in range(20)}
    rows = (json.dumps({"step": step, "train_loss": loss, "lr": 0.1, **layers}) for step, loss in enumerate(falling()))
    Path("many.jsonl").write_text("\n".join(rows))
    assert run(["diagnose", "many.jsonl", "--loss", "zzz"]) == 2
    assert "It has 22 metrics, among them train_loss, lr, activation_rms@" in capsys.readouterr().err
