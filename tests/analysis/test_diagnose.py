from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from analysis.logs import diverging, ending_in_nan, falling, write_log
from architecture.repository import ROOT
from architecture.test_loading import loaded_by

import mlflow_stability
from mlflow_stability.analysis.diagnose import diagnose, diagnose_all, filter_kinds
from mlflow_stability.analysis.source import resolve_source
from mlflow_stability.cli.main import run
from mlflow_stability.errors import RunNotFoundError, SettingsError, UnreadableLogError
from mlflow_stability.reports.report import Failure
from mlflow_stability.vocabulary.result import Diagnosis, Severity

SOME_ID = "0123456789abcdef" * 2


def test_a_text_that_looks_like_a_run_id_is_one_unless_it_exists_as_a_path(tmp_path: Path) -> None:
    assert not resolve_source(SOME_ID).is_path
    (tmp_path / SOME_ID).mkdir()
    there = resolve_source(SOME_ID)
    assert there.is_path
    assert "was not read as a run id" in there.remark


def test_a_path_object_is_always_a_path() -> None:
    with pytest.raises(UnreadableLogError):
        resolve_source(Path(SOME_ID))


@pytest.mark.parametrize("typed", ["gone.csv", "a\x00b", "x" * 5000, SOME_ID[:-1]])
def test_a_source_that_is_neither_a_path_nor_a_run_id_raises_a_one_sentence_error(typed: str) -> None:
    with pytest.raises(UnreadableLogError, match=r"^No such file(, | or )folder.*'"):
        resolve_source(typed)


def test_an_empty_text_names_nothing() -> None:
    with pytest.raises(SettingsError, match="must be the id of an MLflow run or the path of a log; got ''"):
        resolve_source("")


def test_a_healthy_log_is_healthy() -> None:
    diagnosis = diagnose(write_log(Path("good.jsonl"), falling()))
    assert diagnosis.outcome == "healthy"
    assert diagnosis.severity is Severity.INFO


def test_a_log_that_ends_in_nan_is_broken_from_there_on() -> None:
    diagnosis = diagnose(str(write_log(Path("nan.jsonl"), ending_in_nan())))
    assert diagnosis.outcome == "broken"
    assert [(finding.kind, finding.start) for finding in diagnosis.findings] == [("nan_detected", 400)]


@pytest.mark.parametrize("given", ["logs/a.jsonl", "./logs/a.jsonl", "logs//a.jsonl"])
def test_the_source_is_what_was_given(given: str) -> None:
    write_log(Path("logs/a.jsonl"), falling())
    assert diagnose(given).source == given


@pytest.mark.parametrize("given", ["./logs", "logs", "logs/"])
def test_the_source_of_a_log_in_a_folder_is_the_path_of_its_file(given: str) -> None:
    write_log(Path("logs/a.jsonl"), falling())
    write_log(Path("logs/deeper/b.jsonl"), falling(1))
    sources = [item.source for item in diagnose_all([given])]
    assert sorted(sources) == [os.path.join(given, "a.jsonl"), os.path.join(given, "deeper/b.jsonl")]  # noqa: PTH118


def test_several_runs_at_one_path_have_to_be_asked_for_as_such() -> None:
    write_log(Path("logs/a.jsonl"), falling())
    write_log(Path("logs/b.jsonl"), diverging())
    with pytest.raises(SettingsError, match="logs holds 2 runs"):
        diagnose("logs")
    outcomes = {entry.name: entry.outcome for entry in diagnose_all(["logs"]) if isinstance(entry, Diagnosis)}
    assert outcomes == {"a.jsonl": "healthy", "b.jsonl": "diverged"}


def test_one_of_the_trainings_in_a_notebook_is_asked_for_as_its_source_says(tmp_path: Path) -> None:
    text = "".join(f"epoch {n} loss {9 / n:.3f}\n" for n in range(1, 30))
    cells = [{"cell_type": "code", "outputs": [{"output_type": "stream", "text": text}]}] * 2
    (tmp_path / "train.ipynb").write_text(json.dumps({"cells": cells, "nbformat": 4}))
    with pytest.raises(SettingsError, match="holds 2 runs"):
        diagnose(tmp_path / "train.ipynb")
    sources = [item.source for item in diagnose_all([tmp_path / "train.ipynb"]) if isinstance(item, Diagnosis)]
    assert sources == [str(tmp_path / "train.ipynb" / f"cell {n}") for n in (1, 2)]
    assert diagnose(sources[1]).source == sources[1]


def test_an_unreadable_log_does_not_stop_the_others() -> None:
    write_log(Path("a.jsonl"), falling())
    Path("empty.csv").touch()
    diagnoses = list(diagnose_all(["empty.csv", "a.jsonl", "gone.csv"]))
    assert [type(item) for item in diagnoses] == [Failure, Diagnosis, Failure]
    assert "empty" in diagnoses[0].message if isinstance(diagnoses[0], Failure) else False


def test_files_of_a_store_beside_runs_are_passed_over() -> None:
    store = ROOT / "mlruns_fixtures" / "0"
    results = list(diagnose_all([store / "meta.yaml", store / "healthy"]))
    assert [type(result) for result in results] == [Diagnosis]
    assert [type(result) for result in diagnose_all([store / "meta.yaml"])] == [Failure]


def test_an_unknown_run_id_is_reported_as_a_missing_run_and_not_as_a_path(sqlite_uri: str) -> None:
    with pytest.raises(RunNotFoundError, match=SOME_ID):
        diagnose(SOME_ID, sqlite_uri)
    (result,) = diagnose_all([SOME_ID], sqlite_uri)
    assert isinstance(result, Failure)
    assert not result.is_path


@pytest.mark.slow
def test_a_path_needs_neither_mlflow_nor_torch() -> None:
    write_log(Path("a.jsonl"), falling())
    code = (
        f"import os; os.chdir({str(Path.cwd())!r})\n"
        "import mlflow_stability; assert mlflow_stability.diagnose('a.jsonl').outcome == 'healthy'"
    )
    assert loaded_by(code) & {"mlflow", "torch", "rich", "jinja2", "click"} == set()


@pytest.mark.slow
def test_a_run_needs_no_reader_of_files(sqlite_uri: str) -> None:
    code = (
        "import mlflow_stability\n"
        f"try: mlflow_stability.diagnose({SOME_ID!r}, {sqlite_uri!r})\n"
        "except mlflow_stability.errors.RunNotFoundError: pass\n"
        "assert not any(name.startswith('mlflow_stability.importers') for name in sys.modules)"
    )
    loaded = loaded_by(code)
    assert "mlflow" in loaded
    assert "torch" not in loaded


def test_diagnosing_is_public() -> None:
    assert mlflow_stability.diagnose is diagnose
    assert mlflow_stability.diagnose_all is diagnose_all


def test_without_kinds_the_diagnosis_is_unchanged() -> None:
    whole = diagnose(write_log(Path("a.jsonl"), diverging()))
    assert filter_kinds(whole, ()) == whole


def test_nothing_that_depends_on_a_hidden_kind_is_shown() -> None:
    whole = diagnose(write_log(Path("a.jsonl"), ending_in_nan()))
    assert whole.outcome == "broken"
    narrowed = filter_kinds(whole, ("plateau",))
    assert (narrowed.findings, narrowed.cause, narrowed.remedies, narrowed.outcome) == ((), None, (), "not_found")
    assert narrowed.verdict == "Not found: no plateau in 600 steps. Other findings: NaN."


def test_the_kept_findings_have_the_verdict_that_they_would_have_alone() -> None:
    losses = diverging()
    losses[100] = float("nan")
    whole = diagnose(write_log(Path("a.jsonl"), losses))
    assert {"divergence", "nan_detected"} <= {finding.kind for finding in whole.findings}
    narrowed = filter_kinds(whole, ("divergence",))
    assert narrowed.outcome == "diverged"
    assert "nan_detected" not in narrowed.verdict
    assert narrowed.cause is None  # the first trouble was the other


def test_a_run_without_trouble_stays_healthy() -> None:
    assert filter_kinds(diagnose(write_log(Path("a.jsonl"), falling())), ("divergence",)).outcome == "healthy"


def test_the_verdict_mentions_a_requested_kind_that_was_found_only_at_info_level() -> None:
    losses = diverging()
    whole = diagnose(write_log(Path("a.jsonl"), losses))
    mild = replace(whole.findings[0], kind="rollback", severity=Severity.INFO)
    narrowed = filter_kinds(replace(whole, findings=(*whole.findings, mild)), ("rollback",))
    assert narrowed.findings == (mild,)
    assert narrowed.verdict.startswith("Not found: no warning in 600 steps, only a rollback (INFO). Other findings: ")


def test_checks_that_could_not_be_made_are_listed_for_the_requested_kinds_only() -> None:
    whole = diagnose(write_log(Path("a.jsonl"), falling()))
    assert {str(value) for value in whole.cannot_tell} > {"Gradients: no gradient norm was logged."}
    narrowed = filter_kinds(whole, ("gradient_explosion",))
    assert [str(value) for value in narrowed.cannot_tell] == ["Gradients: no gradient norm was logged."]
    assert filter_kinds(whole, ("loss_spike",)).cannot_tell == ()


def test_a_requested_kind_is_shown_at_any_severity(capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(Path("a.jsonl"), falling())
    log.write_text(f"{log.read_text()}Loss exploded\n")
    assert run(["diagnose", str(log)]) == 0
    assert "Loss exploded" not in capsys.readouterr().out
    assert run(["diagnose", str(log), "--issue-type", "divergence"]) == 0
    assert "Loss exploded" in capsys.readouterr().out
