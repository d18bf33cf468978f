from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from analysis.logs import falling
from analysis.stored_runs import store_run
from mlflow import MlflowClient
from servers.troubled_server import TroubledServer

from mlflow_stability.errors import RunNotFoundError, TrackingError
from mlflow_stability.tracking.read import run_search
from mlflow_stability.tracking.read.run_search import head_of, runs_of_experiment
from mlflow_stability.tracking.run_files import log_comparison


def test_all_pages_are_read(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_search, "PAGE", 2)
    made = {store_run(sqlite_uri, [1.0]) for _ in range(5)}
    assert {head.run_id for head in runs_of_experiment("Default", tracking_uri=sqlite_uri)} == made


@pytest.mark.slow
def test_an_experiment_may_go_by_its_id_and_a_server_answers_as_a_file_does(rest_server: str) -> None:
    client = MlflowClient(tracking_uri=rest_server)
    experiment = client.create_experiment("searched")
    made = store_run(rest_server, falling()[:5], experiment=experiment, lr=1)
    store_run(rest_server, falling()[:5], experiment=experiment, lr=2)
    for asked in ("searched", experiment):
        (head,) = runs_of_experiment(asked, "params.lr = '1'", rest_server)
        assert (head.run_id, head.finished) == (made, True)


def test_the_state_of_a_run_changes_with_whatever_is_logged(sqlite_uri: str) -> None:
    client = MlflowClient(tracking_uri=sqlite_uri)
    run_id = store_run(sqlite_uri, [1.0], status="RUNNING")
    states = [head_of(run_id, sqlite_uri)]
    client.log_metric(run_id, "train_loss", 2.0, step=1)
    states.append(head_of(run_id, sqlite_uri))
    client.set_tag(run_id, "a", "b")
    states.append(head_of(run_id, sqlite_uri))
    client.set_terminated(run_id)
    states.append(head_of(run_id, sqlite_uri))
    assert len({head.state for head in states}) == 4
    assert [head.finished for head in states] == [False, False, False, True]
    assert head_of(run_id, sqlite_uri) == states[-1]


def test_the_state_of_a_run_changes_with_another_point_of_the_same_value(sqlite_uri: str) -> None:
    run_id = store_run(sqlite_uri, [1.0, 1.0])
    before = head_of(run_id, sqlite_uri)
    MlflowClient(tracking_uri=sqlite_uri).log_metric(run_id, "train_loss", 1.0, step=2)
    assert head_of(run_id, sqlite_uri).state != before.state


def test_a_run_of_the_same_id_in_another_store_has_another_state(
    sqlite_uri: str, template_database: Path, tmp_path: Path
) -> None:
    run_id = store_run(sqlite_uri, [1.0])
    copied = shutil.copy(tmp_path / "store" / "mlflow.db", tmp_path / "copy.db")
    assert head_of(run_id, f"sqlite:///{copied}").state != head_of(run_id, sqlite_uri).state


def test_an_experiment_is_found_by_its_id_among_very_many(sqlite_uri: str, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "store" / "mlflow.db")) as database, database:
        rows = [(number, f"sweep {number}", "file:///nowhere", "active", number, number) for number in range(1, 1102)]
        columns = "experiment_id, name, artifact_location, lifecycle_stage, creation_time, last_update_time"
        database.executemany(f"INSERT INTO experiments ({columns}) VALUES (?,?,?,?,?,?)", rows)
    made = store_run(sqlite_uri, [1.0], experiment="7")
    assert [head.run_id for head in runs_of_experiment("7", tracking_uri=sqlite_uri)] == [made]


def test_a_comparison_that_could_not_be_written_is_not_left_running(sqlite_uri: str, tmp_path: Path) -> None:
    (tmp_path / "store" / "artifacts").write_text("in the way")
    with pytest.raises(TrackingError, match=r"comparison\.json"):
        log_comparison("Default", sqlite_uri, {"comparison.json": "{}"}, "2 runs.")
    (report,) = MlflowClient(tracking_uri=sqlite_uri).search_runs(["0"])
    assert report.info.status == "FAILED"


def test_deleted_runs_and_our_own_comparisons_are_no_runs_of_an_experiment(sqlite_uri: str) -> None:
    client = MlflowClient(tracking_uri=sqlite_uri)
    kept, gone = store_run(sqlite_uri, [1.0]), store_run(sqlite_uri, [1.0])
    client.delete_run(gone)
    report = log_comparison("Default", sqlite_uri, {"comparison.json": "{}"}, "2 runs.")
    assert client.get_run(report).data.tags["mlflow.note.content"] == "2 runs."
    assert [head.run_id for head in runs_of_experiment("Default", tracking_uri=sqlite_uri)] == [kept]


def test_a_comparison_may_go_into_an_experiment_that_is_not_there_yet(sqlite_uri: str) -> None:
    log_comparison("reports", sqlite_uri, {"comparison.json": "{}"}, "2 runs.")
    assert MlflowClient(tracking_uri=sqlite_uri).get_experiment_by_name("reports") is not None


@pytest.mark.parametrize(("asked", "expected"), [("none such", "Available: Default"), ("77", "No experiment '77'")])
def test_the_error_for_a_missing_experiment_lists_the_existing_ones(sqlite_uri: str, asked: str, expected: str) -> None:
    with pytest.raises(RunNotFoundError, match=expected):
        runs_of_experiment(asked, tracking_uri=sqlite_uri)


def test_an_unreachable_server_is_reported_within_seconds() -> None:
    with pytest.raises(TrackingError, match="does not answer"):
        runs_of_experiment("Default", tracking_uri="http://127.0.0.1:9")


@pytest.mark.slow
def test_no_page_is_asked_for_that_is_not_needed(
    troubled_server: TroubledServer, rest_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_search, "PAGE", 2)
    experiment = MlflowClient(tracking_uri=rest_server).create_experiment("many")
    made = [store_run(rest_server, [1.0], experiment=experiment) for _ in range(9)]
    result = runs_of_experiment("many", tracking_uri=troubled_server.url, most=3)
    assert [head.run_id for head in result] == made[:-4:-1]
    assert sum(path.endswith("/runs/search") for path in troubled_server.requests) == 2
