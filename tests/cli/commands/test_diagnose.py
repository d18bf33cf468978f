from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from analysis.logs import diverging, ending_in_nan, falling, write_log
from architecture.repository import ROOT
from architecture.test_loading import loaded_by
from click.shell_completion import ShellComplete
from jsonschema import Draft202012Validator
from mlflow import MlflowClient
from mlflow.entities import Metric

from mlflow_stability.cli.main import commands, run
from mlflow_stability.reports.formats.json import schema
from mlflow_stability.reports.report_format import FORMATS

CLOSED = "http://127.0.0.1:9"
NO_RUN = "0123456789abcdef" * 2


@pytest.fixture(autouse=True)
def logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    write_log(Path("logs/good.jsonl"), falling())
    write_log(Path("logs/bad.jsonl"), diverging())
    write_log(Path("logs/nan.jsonl"), ending_in_nan())


def stored_run(uri: str, values: list[float], name: str = "train_loss") -> str:
    client = MlflowClient(tracking_uri=uri)
    run_id = client.create_run("0").info.run_id
    client.log_batch(run_id, [Metric(name, value, 1_000 * step, step) for step, value in enumerate(values)])
    client.set_terminated(run_id)
    return run_id


def document(capsys: pytest.CaptureFixture[str]) -> dict:
    result = json.loads(capsys.readouterr().out)
    Draft202012Validator(schema("diagnosis")).validate(result)
    return result


def by_itself(*arguments: str, after: str = "") -> subprocess.CompletedProcess[str]:
    command = f'"$0" -m mlflow_stability "$@" {after}'
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command, sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("log", "code"), [("good", 0), ("bad", 1), ("nan", 1)])
def test_the_exit_code_says_whether_something_was_found(log: str, code: int) -> None:
    assert run(["diagnose", f"logs/{log}.jsonl"]) == code


def test_a_person_reads_verdict_curve_and_remedies(capsys: pytest.CaptureFixture[str]) -> None:
    run(["diagnose", "logs/bad.jsonl"])
    printed = capsys.readouterr()
    for part in ("Diverged: train_loss", "CRITICAL divergence", "What to do", "┤"):
        assert part in printed.out
    assert max(map(len, printed.out.splitlines())) <= 80
    assert printed.err == ""


def test_several_inputs_give_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose", "logs/bad.jsonl", "./logs/nan.jsonl", "logs", "--output-format", "json"]) == 1
    result = document(capsys)
    assert [row["source"] for row in result["runs"]] == [
        "logs/bad.jsonl",
        "./logs/nan.jsonl",
        "logs/bad.jsonl",
        "logs/good.jsonl",
        "logs/nan.jsonl",
    ]
    assert {issue["source"] for issue in result["issues"]} == {"logs/bad.jsonl", "./logs/nan.jsonl", "logs/nan.jsonl"}


def test_only_the_kinds_asked_for_are_shown_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["diagnose", "logs", "--output-format", "csv"]
    for name in ("nan-detected", "nan"):
        assert run([*typed, "--issue-type", name]) == 1
        assert _issue_types(capsys.readouterr().out) == ["nan_detected"]
    assert run([*typed, "--issue-type", "overfitting", "--issue-type", "plateau"]) == 0
    assert not _issue_types(capsys.readouterr().out)


def _issue_types(printed: str) -> list[str]:
    """Of the rows that name one: a run without any has a row, too."""
    return [row["issue_type"] for row in csv.DictReader(io.StringIO(printed)) if row["issue_type"]]


def test_a_higher_sensitivity_finds_what_a_lower_one_misses(tmp_path: Path) -> None:
    losses = [3.0 - at / 60 + 0.02 * (-1) ** at for at in range(60)]
    losses[30] = 3.0
    Path("small.jsonl").write_text("".join(f'{{"step": {at}, "loss": {loss}}}\n' for at, loss in enumerate(losses)))
    codes = [run(["diagnose", "small.jsonl", "--sensitivity", name]) for name in ("low", "normal", "high")]
    assert codes == [0, 0, 1]


def test_text_that_depends_on_a_hidden_kind_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose", "logs/bad.jsonl", "--issue-type", "plateau"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Not found: no plateau in 600 steps. Other findings: a divergence." in text
    assert "Cannot tell" not in text
    assert "Diverged" not in text
    assert "What to do" not in text


def test_the_error_for_an_unknown_kind_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose", "logs", "--issue-type", "nan_detcted"]) == 2
    assert "Did you mean nan_detected" in " ".join(capsys.readouterr().err.split())


def test_fail_on_sets_the_severity_that_fails_the_command() -> None:
    losses = falling()
    losses[300:303] *= 1.5
    write_log(Path("spike.jsonl"), losses)
    assert run(["diagnose", "spike.jsonl"]) == 1
    assert run(["diagnose", "spike.jsonl", "--fail-on", "critical"]) == 0


def test_norms_below_the_users_own_threshold_are_not_an_explosion(capsys: pytest.CaptureFixture[str]) -> None:
    norms = np.exp(0.1 * np.random.default_rng(0).normal(size=600))
    norms[400] *= 30
    rows = [{"step": step, "loss": 2.0 - step / 1000, "grad_norm": norm} for step, norm in enumerate(norms)]
    Path("norms.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    typed = ["diagnose", "norms.jsonl", "--issue-type", "gradient_explosion", "--output-format", "json"]
    for limit, result in (("5", 1), ("500", 0)):
        own = f"GradientExplosion(threshold={limit}, threshold_alone=True)"
        run([*typed, "--detectors", "default", "--detectors", own])
        assert document(capsys)["summary"]["total_issues"] == result


@pytest.mark.parametrize("name", ["out.json", "out.csv", "out.md", "out.html", "out.txt"])
def test_the_ending_of_the_output_file_sets_the_format_of_the_report(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["diagnose", "logs/bad.jsonl", "--output", name]) == 1
    assert capsys.readouterr().out == ""
    text = Path(name).read_text(encoding="utf-8")
    begins = {"out.json": "{", "out.csv": "source,", "out.md": "# ", "out.html": "<!doctype", "out.txt": "bad.jsonl ─"}
    assert text.startswith(begins[name])


def test_a_requested_format_takes_precedence_over_the_ending_of_the_file() -> None:
    assert run(["diagnose", "logs/bad.jsonl", "--output", "out.html", "--output-format", "json"]) == 1
    assert json.loads(Path("out.html").read_text(encoding="utf-8"))["schema_version"] == 2


@pytest.mark.parametrize("file", ["logs/bad.jsonl", "logs/../logs/bad.jsonl", "link.jsonl"])
@pytest.mark.parametrize("asked", ["logs/bad.jsonl", "logs"])
def test_a_log_that_is_diagnosed_is_never_overwritten(
    file: str, asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("link.jsonl").symlink_to("logs/bad.jsonl")
    before = Path("logs/bad.jsonl").read_bytes()
    assert run(["diagnose", asked, "--output", file, "--output-format", "csv"]) == 2
    assert "would be overwritten" in capsys.readouterr().err
    assert Path("logs/bad.jsonl").read_bytes() == before


def test_an_unknown_file_ending_is_refused_with_a_list_of_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose", "logs/bad.jsonl", "--output", "out.pdf"]) == 2
    text = " ".join(capsys.readouterr().err.split())
    assert ".pdf" in text
    assert ".html" in text
    assert not Path("out.pdf").exists()
    assert run(["diagnose", "logs/bad.jsonl", "--output", "out.pdf", "--output-format", "html"]) == 1


@pytest.mark.parametrize("file", ["no/such/folder/out.html", "logs"])
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["diagnose", "gone.csv", "--output", file]) == 2
    assert "Invalid value for '--output'" in capsys.readouterr().err


def test_unreadable_inputs_are_reported_beside_the_diagnoses_of_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.csv").touch()
    Path("model.pt").write_bytes(bytes(range(256)) * 10)
    assert run(["diagnose", "logs/good.jsonl", "empty.csv", "model.pt", "gone.csv", "--output-format", "json"]) == 2
    printed = capsys.readouterr()
    errors = printed.err.splitlines()
    assert [line.startswith("mlflow-stability: ") for line in errors] == [True] * 3
    values = json.loads(printed.out)
    assert [error["source"] for error in values["errors"]] == ["empty.csv", "model.pt", "gone.csv"]
    assert [row["outcome"] for row in values["runs"]] == ["healthy"]


def test_when_nothing_can_be_read_stdout_stays_empty(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose", "gone.csv"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1


def test_a_hostile_name_reaches_neither_terminal_nor_page(capsys: pytest.CaptureFixture[str]) -> None:
    write_log(Path("evil.jsonl"), diverging(), "train_loss\x1b[2J<script>alert(1)</script>[red]")
    run(["diagnose", "evil.jsonl", "evil\x1b[2J.csv"])
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    run(["diagnose", "evil.jsonl", "--output-format", "html"])
    assert "<script" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_of_a_store_is_diagnosed(sqlite_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = stored_run(sqlite_uri, [float(value) for value in diverging()])
    assert run(["diagnose", run_id, "--tracking-uri", sqlite_uri, "--output-format", "json"]) == 1
    result = document(capsys)
    assert result["summary"]["total_runs"] == 1
    assert "total_files" not in result["summary"]
    assert {issue["source"] for issue in result["issues"]} == {run_id}


def test_a_report_is_added_to_the_run(sqlite_uri: str) -> None:
    run_id = stored_run(sqlite_uri, [float(value) for value in diverging()])
    assert run(["diagnose", run_id, "--tracking-uri", sqlite_uri, "--log-to-run", "--output", "mine.csv"]) == 1
    client = MlflowClient(tracking_uri=sqlite_uri)
    names = {artifact.path for artifact in client.list_artifacts(run_id, "stability")}
    assert {"stability/report.html", "stability/report.json"} <= names
    page = Path(client.download_artifacts(run_id, "stability/report.html")).read_text(encoding="utf-8")
    assert "divergence" in page
    assert client.get_run(run_id).info.status == "FINISHED"


def test_a_report_can_only_be_added_to_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose", "logs/bad.jsonl", "--log-to-run"]) == 2
    assert "is a file or folder" in " ".join(capsys.readouterr().err.split())


def test_a_missing_run_and_an_unreachable_server_are_each_reported_in_one_line(
    sqlite_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for uri in (sqlite_uri, CLOSED):
        assert run(["diagnose", NO_RUN, "--tracking-uri", uri]) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        assert "Traceback" not in printed.err


def test_a_folder_named_like_a_run_id_is_read_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    write_log(Path(NO_RUN, "a.jsonl"), falling())
    assert run(["diagnose", NO_RUN]) == 0
    assert "was not read as a run id" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "rich"])
def test_a_reader_that_closes_the_pipe_early_is_not_an_error(form: str) -> None:
    # `true` is gone long before the first line comes.
    done = by_itself("diagnose", "logs/good.jsonl", "--output-format", form, after="| true")
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.slow
@pytest.mark.parametrize(("log", "code"), [("good", 0), ("bad", 1)])
def test_the_exit_code_is_correct_when_stdout_is_closed(log: str, code: int) -> None:
    done = by_itself("diagnose", f"logs/{log}.jsonl", after=">&-")
    assert (done.stderr, done.returncode) == ("", code)


@pytest.mark.slow
def test_a_full_disk_is_reported_in_one_sentence() -> None:
    done = by_itself("diagnose", "logs", after="> /dev/full")
    assert done.returncode == 2
    assert done.stderr == "mlflow-stability: The result could not be written: No space left on device.\n"


@pytest.mark.slow
def test_a_terminal_with_ascii_encoding_gets_ascii_output() -> None:
    os.environ["PYTHONIOENCODING"] = "ascii"
    try:
        done = by_itself("diagnose", "logs/bad.jsonl")
    finally:
        del os.environ["PYTHONIOENCODING"]
    assert done.returncode == 1
    assert done.stdout.isascii()
    assert "Diverged: train_loss" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_a_log_needs_neither_mlflow_nor_torch(form: str) -> None:
    typed = ["diagnose", str(Path("logs").resolve()), "--output-format", form, "--output", str(Path("out").resolve())]
    loaded = loaded_by(f"from mlflow_stability.cli.main import run\nassert run({typed!r}) == 1")
    assert loaded & {"mlflow", "torch", "matplotlib"} == set()
    assert ("jinja2" in loaded) == (form == "html")


def test_a_shell_completes_kinds_and_options() -> None:
    completion = ShellComplete(commands, {}, "mlflow-stability", "_MLFLOW_STABILITY_COMPLETE")
    kinds = completion.get_completions(["diagnose", "--issue-type"], "nan")
    assert [item.value for item in kinds] == ["nan_detected", "nan_origin"]
    options = {item.value for item in completion.get_completions(["diagnose"], "--")}
    assert {"--verbose", "--issue-type", "--output-format", "--output", "--tracking-uri", "--log-to-run"} <= options
    (files,) = completion.get_completions(["diagnose"], "lo")
    assert files.type == "file"


def test_brief_is_the_verdict_the_cause_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose", "logs/bad.jsonl", "--brief"]) == 1
    printed = capsys.readouterr().out
    assert "Diverged: train_loss" in printed
    assert "What to do" in printed
    assert "Findings" not in printed
    assert run(["diagnose", "logs", "--brief", "--output-format", "json", "--output", "brief.json"]) == 1
    assert len(json.loads(Path("brief.json").read_text("utf-8"))["runs"]) == 3
    for wrong in (["--output-format", "csv"], ["--verbose"]):
        assert run(["diagnose", "logs/bad.jsonl", "--brief", *wrong]) == 2
        assert "--brief goes with" in capsys.readouterr().err
