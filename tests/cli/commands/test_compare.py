from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from analysis.logs import diverging, falling, write_log
from analysis.stored_runs import store_run
from architecture.repository import ROOT
from jsonschema import Draft202012Validator
from mlflow import MlflowClient
from waiting import wait_until

from mlflow_stability.cli.main import run
from mlflow_stability.reports.formats.json import schema

NO_RUN = "0123456789abcdef" * 2


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_log(Path("logs/good.jsonl"), falling())
    write_log(Path("logs/again.jsonl"), falling(1))
    write_log(Path("logs/bad.jsonl"), diverging())


@pytest.mark.parametrize(
    ("typed", "code"),
    [
        (["logs/good.jsonl", "logs/again.jsonl"], 0),
        (["logs/good.jsonl", "logs/bad.jsonl"], 1),
        (["logs/again.jsonl", "--baseline", "logs/good.jsonl"], 0),
        (["logs/good.jsonl", "gone.csv"], 2),
        ([], 2),
        (["logs", "--experiment", "x"], 2),
        (["logs", "--filter", "x"], 2),
        (["logs", "--baseline", "nobody"], 2),
        (["logs", "--output", "x.pdf"], 2),
    ],
)
def test_the_exit_code_says_whether_something_was_found(typed: list[str], code: int) -> None:
    assert run(["compare", *typed]) == code


def test_a_run_that_is_only_worse_than_the_baseline_fails_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    write_log(Path("worse.jsonl"), 1.3 * falling(2))
    assert run(["compare", "worse.jsonl", "logs/good.jsonl"]) == 0
    capsys.readouterr()
    assert run(["compare", "worse.jsonl", "--baseline", "logs/good.jsonl", "--output-format", "json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["gate"]["passed"] is False
    assert "worse.jsonl is worse than the baseline" in printed.err
    assert "%" in printed.err


def test_a_person_reads_the_order_and_where_two_part(capsys: pytest.CaptureFixture[str]) -> None:
    run(["compare", "logs/bad.jsonl", "logs/good.jsonl"])
    printed = capsys.readouterr()
    assert printed.out.index("good.jsonl") < printed.out.index("bad.jsonl")
    assert "First difference" in printed.out
    assert max(map(len, printed.out.splitlines())) <= 80
    assert printed.err == ""


@pytest.mark.slow
def test_the_ending_of_the_file_says_the_form() -> None:
    for name in ("c.json", "c.csv", "c.md", "c.html", "c.txt"):
        run(["compare", "logs", "--output", name])
    Draft202012Validator(schema("comparison")).validate(json.loads(Path("c.json").read_text()))
    assert len(list(csv.DictReader(io.StringIO(Path("c.csv").read_text())))) == 3
    assert Path("c.md").read_text().startswith("# Training comparison")
    assert Path("c.html").read_text().startswith("<!doctype html>")
    assert "3 runs: 1 lost, 2 stable." in Path("c.txt").read_text()


def test_a_log_that_is_compared_is_not_written_over() -> None:
    before = Path("logs/good.jsonl").read_bytes()
    assert run(["compare", "logs", "--output-format", "json", "--output", "logs/good.jsonl"]) == 2
    assert Path("logs/good.jsonl").read_bytes() == before


@pytest.mark.slow
def test_it_goes_into_a_run_and_into_an_experiment_that_can_be_compared_again(
    sqlite_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store_run(sqlite_uri, falling(), name="good")
    bad = store_run(sqlite_uri, diverging(), name="bad")
    typed = ["compare", "--experiment", "Default", "--tracking-uri", sqlite_uri]
    assert run([*typed, "--log-to-run", bad, "--log-to-experiment", "Default"]) == 1
    client = MlflowClient(tracking_uri=sqlite_uri)
    (report,) = [parameter for parameter in client.search_runs(["0"]) if "stability.comparison" in parameter.data.tags]
    for run_id in (bad, report.info.run_id):
        files = {artifact.path for artifact in client.list_artifacts(run_id, "stability")}
        assert {"stability/comparison.html", "stability/comparison.json"} <= files
    assert report.info.status == "FINISHED"
    capsys.readouterr()
    run([*typed, "--output-format", "json"])
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2


def test_what_cannot_be_read_is_reported_beside_what_can(sqlite_uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    good = store_run(sqlite_uri, falling())
    assert run(["compare", good, NO_RUN, "--tracking-uri", sqlite_uri, "--output-format", "csv"]) == 2
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 3
    assert NO_RUN in printed.err


@pytest.mark.slow
def test_ctrl_c_shows_what_is_done(sqlite_uri: str) -> None:
    runs = [store_run(sqlite_uri, falling(number)) for number in range(3)]
    code = (
        "import os, signal, sys\n"
        "from contextlib import contextmanager\n"
        "from mlflow_stability.cli.commands import compare\n"
        "from mlflow_stability.cli.main import run\n"
        "reading_progress = compare._reading_progress\n"
        "@contextmanager\n"
        "def interrupted():\n"
        "    with reading_progress() as show:\n"
        "        def show_and_interrupt(*counts):\n"
        "            show(*counts)\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "        yield show_and_interrupt\n"
        "compare._reading_progress = interrupted\n"
        "sys.exit(run(sys.argv[1:]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "compare", *runs, "--tracking-uri", sqlite_uri],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 130
    assert "1 run: 1 stable." in done.stdout
    assert "Interrupted: 1 of 3 runs were read." in done.stdout


@pytest.mark.slow
def test_nothing_is_left_running_after_ctrl_c_on_many(sqlite_uri: str) -> None:
    runs = [store_run(sqlite_uri, falling(number)[:20]) for number in range(14)]
    code = (
        "import os, sys\n"
        "os.cpu_count = lambda: 2\n"
        "from mlflow_stability.analysis import cards; cards.STARTING = 0.0\n"
        "from mlflow_stability.cli.main import run\n"
        "sys.exit(run(sys.argv[1:]))\n"
    )
    typed = [sys.executable, "-c", code, "compare", *runs, "--tracking-uri", sqlite_uri, "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(typed, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    workers = wait_until(lambda: psutil.Process(process.pid).children(recursive=True))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    gone, alive = psutil.wait_procs(workers, timeout=60)
    assert len(gone) == len(workers)
    assert alive == []


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["json", "csv"])
def test_reports_that_lie_beside_the_logs_are_no_runs(ending: str, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # the second time the report of the first lies there
        assert run(["compare", "logs", "--output", f"logs/report.{ending}"]) == 1
        assert run(["diagnose", "logs", "--output", f"logs/diagnosis.{ending}"]) == 1
    capsys.readouterr()
    assert run(["compare", "logs", "--output-format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["asked"] == 3
