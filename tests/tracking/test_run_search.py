from __future__ import annotations

import pytest
from analysis.logs import falling
from analysis.stored_runs import store_run
from mlflow import MlflowClient

from mlflow_stability.errors import RunNotFoundError, TrackingError
from mlflow_stability.tracking import run_search
from mlflow_stability.tracking.comparison_run import log_comparison
from mlflow_stability.tracking.run_search import head_of, runs_of_experiment


def test_all_pages_are_read(sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_search, "PAGE", 2)
    made = {store_run(sqlite_uri, [1.0]) for _ in range(5)}
    assert {head.run_id for head in runs_of_experiment("Default", tracking_uri=sqlite_uri)} == made


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


@pytest.mark.parametrize(("asked", "said"), [("none such", "There are Default"), ("77", "no experiment '77'")])
def test_an_experiment_that_is_not_there_is_said_with_those_that_are(sqlite_uri: str, asked: str, said: str) -> None:
    with pytest.raises(RunNotFoundError, match=said):
        runs_of_experiment(asked, tracking_uri=sqlite_uri)


def test_a_server_that_is_away_is_said_within_seconds() -> None:
    with pytest.raises(TrackingError, match="does not answer"):
        runs_of_experiment("Default", tracking_uri="http://127.0.0.1:9")
