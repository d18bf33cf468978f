from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow import MlflowClient
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

from mlflow_stability.errors import TrackingError
from mlflow_stability.tracking.keys import fitting_keys
from mlflow_stability.tracking.read.run_reader import read_run_history
from mlflow_stability.tracking.run_import import RunImport, content_hash
from mlflow_stability.vocabulary.measured.signal import Series
from mlflow_stability.vocabulary.run import Metric, RunHistory
from mlflow_stability.vocabulary.text.metric_names import metric_meanings


def a_run(
    metrics: dict[str, list[float]], attempts: list[int] | None = None, times: bool = False, **more: object
) -> RunHistory:
    made = []
    for name, meaning in metric_meanings(metrics).items():
        count = len(metrics[name])
        which = np.asarray(attempts or [0] * count, np.int64)
        steps = np.concatenate([np.arange((which == value).sum()) for value in np.unique(which)]).astype(np.int64)
        when = np.arange(count) + 1.6e9 if times else np.zeros(count)
        made.append(Metric(name, meaning, Series(meaning.signal, steps, np.asarray(metrics[name], float), which, when)))
    values = {"source": "train.log", "name": "train.log", "format": "text", "basis": ""} | more
    return RunHistory(metrics=tuple(made), **values)  # type: ignore[arg-type]


def stored(uri: str, run_id: str, key: str) -> list[tuple[int, int, float]]:
    history = MlflowClient(uri).get_metric_history(run_id, key)
    return sorted((point.timestamp, point.step, point.value) for point in history)


def runs_in(uri: str, experiment: str = "logs") -> list[str]:
    client = MlflowClient(uri)
    result = client.get_experiment_by_name(experiment)
    assert result is not None
    return [run.info.run_id for run in client.search_runs([result.experiment_id])]


def test_a_run_arrives_with_everything_that_is_known_of_it(sqlite_uri: str) -> None:
    run = a_run(
        {"loss": [3.0, 2.0], "val": [1.0]},
        times=True,
        params={"lr": "0.1"},
        tags={"team": "a"},
        outcome="crashed",
        notes=("odd",),
    )
    run_id = RunImport("logs", sqlite_uri).bring(run)
    there = MlflowClient(sqlite_uri).get_run(run_id)
    assert stored(sqlite_uri, run_id, "loss") == [(1_600_000_000_000, 0, 3.0), (1_600_000_001_000, 1, 2.0)]
    assert (there.info.status, there.info.run_name, there.data.params) == ("FAILED", "train.log", {"lr": "0.1"})
    assert (there.data.tags["team"], there.data.tags["mlflow.note.content"]) == ("a", "odd")
    assert (there.info.start_time, there.info.end_time) == (1_600_000_000_000, 1_600_000_001_000)


def test_a_moved_log_is_recognized_as_the_same_run_with_a_remark(sqlite_uri: str) -> None:
    lines: list[str] = []
    first = RunImport("logs", sqlite_uri).bring(a_run({"loss": [3.0, math.nan]}), remark=lines.append)
    again = RunImport("logs", sqlite_uri)
    assert again.bring(a_run({"loss": [3.0, math.nan]}, source="elsewhere.log"), remark=lines.append) == first
    (remark,) = lines
    assert first in remark
    assert "train.log" in remark
    assert again.bring(a_run({"loss": [3.0, 1.0]})) != first
    assert again.bring(a_run({"loss": [3.0, math.nan]}, tags={"team": "b"})) != first
    assert len(runs_in(sqlite_uri)) == 3


@pytest.mark.parametrize("losses", [[3.0, 2.0], [math.nan, math.nan]])
def test_two_logs_that_are_both_there_are_two_runs_though_their_numbers_are_equal(
    sqlite_uri: str, tmp_path: Path, losses: list[float]
) -> None:
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    for log in logs:
        log.touch()
    for _ in range(2):
        bring = RunImport("logs", sqlite_uri).bring
        result = [bring(a_run({"loss": losses}, source=str(log))) for log in logs]
        assert len(set(result)) == len(runs_in(sqlite_uri)) == 2
    moved = [log.rename(log.with_suffix(".old")) for log in logs]
    bring = RunImport("logs", sqlite_uri).bring
    assert {bring(a_run({"loss": losses}, source=str(log))) for log in moved} == set(result)


@pytest.mark.slow
def test_an_import_that_was_killed_is_completed_and_not_doubled(
    sqlite_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run({"loss": [1.0 / n for n in range(1, 2501)]})
    original = SqlAlchemyStore.log_batch

    def dies_at_the_end(
        self: SqlAlchemyStore, run_id: str, metrics: list[object], params: object, tags: object
    ) -> None:
        if 0 < len(metrics) < 1000:
            raise KeyboardInterrupt
        original(self, run_id, metrics, params, tags)

    with monkeypatch.context() as patch:
        patch.setattr(SqlAlchemyStore, "log_batch", dies_at_the_end)
        with pytest.raises(KeyboardInterrupt):
            RunImport("logs", sqlite_uri).bring(run)
    (half,) = runs_in(sqlite_uri)
    assert len(stored(sqlite_uri, half, "loss")) == 2000
    assert RunImport("logs", sqlite_uri).bring(run) == half
    assert len(stored(sqlite_uri, half, "loss")) == 2500
    assert MlflowClient(sqlite_uri).get_run(half).info.status == "FINISHED"


def test_an_imported_run_is_read_back_unchanged(sqlite_uri: str) -> None:
    run = a_run({"train loss": [3.0, math.nan, math.inf, -math.inf, 2.0]})
    back = read_run_history(RunImport("logs", sqlite_uri).bring(run), sqlite_uri)
    assert back.complete
    assert np.array_equal(back.metrics[0].series.values, run.metrics[0].series.values, equal_nan=True)
    assert back.metrics[0].series.steps.tolist() == [0, 1, 2, 3, 4]
    assert back.of("loss")[0].name == "train loss"


def test_attempts_without_times_stay_one_behind_the_other(sqlite_uri: str) -> None:
    run = a_run({"loss": [5.0, 4.0, 3.0, 5.0, 4.0, 2.0]}, attempts=[0, 0, 0, 1, 1, 1])
    back = read_run_history(RunImport("logs", sqlite_uri).bring(run), sqlite_uri)
    assert back.metrics[0].series.attempts.tolist() == [0, 0, 0, 1, 1, 1]
    assert back.metrics[0].series.values.tolist() == [5.0, 4.0, 3.0, 5.0, 4.0, 2.0]


@pytest.mark.parametrize("is_known", [True, False])
def test_times_that_were_made_up_do_not_come_back(sqlite_uri: str, is_known: bool) -> None:
    run_id = RunImport("logs", sqlite_uri).bring(a_run({"loss": [3.0, 2.0, 1.0]}, times=is_known))
    (metric,) = read_run_history(run_id, sqlite_uri).metrics
    assert metric.series.times.tolist() == ([1.6e9, 1.6e9 + 1, 1.6e9 + 2] if is_known else [0.0, 0.0, 0.0])


def test_names_that_mlflow_does_not_take_are_made_to_fit(sqlite_uri: str) -> None:
    names = {
        "metrics/mAP50(B)": [1.0, 2.0],
        "metrics/mAP50[B]": [3.0, 4.0],
        "/loss//x/../y": [5.0, 6.0],
        "% done": [7.0, 8.0],
    }
    run_id = RunImport("logs", sqlite_uri).bring(a_run(names))
    assert len(MlflowClient(sqlite_uri).get_run(run_id).data.metrics) == 4


def test_progress_is_reported_up_to_the_last_value(sqlite_uri: str) -> None:
    numbers: list[int] = []
    RunImport("logs", sqlite_uri).bring(a_run({"loss": [1.0] * 1500}), progress=numbers.append)
    assert numbers == [1000, 1500]


def test_the_full_record_of_a_run_of_ours_comes_along(sqlite_uri: str, tmp_path: Path) -> None:
    (tmp_path / "stability" / "record").mkdir(parents=True)
    (tmp_path / "stability" / "record" / "part.parquet").write_bytes(b"x")
    run_id = RunImport("logs", sqlite_uri).bring(a_run({"loss": [1.0, 2.0]}), tmp_path / "stability")
    assert [artifact.path for artifact in MlflowClient(sqlite_uri).list_artifacts(run_id, "stability/record")] == [
        "stability/record/part.parquet"
    ]


def test_a_deleted_experiment_is_refused_as_deleted(sqlite_uri: str) -> None:
    client = MlflowClient(sqlite_uri)
    client.delete_experiment(client.create_experiment("gone"))
    with pytest.raises(TrackingError, match="Experiment gone was deleted"):
        RunImport("gone", sqlite_uri)


@pytest.mark.slow
def test_a_server_takes_what_a_database_takes(rest_server: str) -> None:
    run = a_run({"loss": [3.0, math.nan, math.inf], "deep/er": [1.0, 2.0, 3.0]}, params={"a": "b"})
    run_id = RunImport("logs over http", rest_server).bring(run)
    assert len(stored(rest_server, run_id, "loss")) == 3
    assert RunImport("logs over http", rest_server).bring(run) == run_id


def test_the_hash_of_a_run_depends_on_what_was_logged_alone() -> None:
    run = a_run({"loss": [1.0, 2.0]})
    assert content_hash(run) == content_hash(a_run({"loss": [1.0, 2.0]}, source="/x", name="y", format="csv"))
    others = [a_run({"loss": [1.0, 3.0]}), a_run({"lo": [1.0, 2.0]}), a_run({"loss": [1.0, 2.0]}, params={"a": "b"})]
    assert content_hash(run) not in {content_hash(other) for other in others}


@given(st.lists(st.text(max_size=300), max_size=12))
def test_two_names_never_become_one_key(names: list[str]) -> None:
    keys = fitting_keys(names)
    assert len(set(keys.values())) == len(set(names))
    assert all(0 < len(key) <= 250 and not key.startswith("/") for key in keys.values())


def test_equal_values_at_an_equal_step_are_all_kept(sqlite_uri: str) -> None:
    run = a_run({"loss": [1.0, 2.0, 1.0, 3.0]})
    run.metrics[0].series.steps[:] = [5, 5, 5, 6]
    back = read_run_history(RunImport("logs", sqlite_uri).bring(run), sqlite_uri)
    assert back.metrics[0].series.steps.tolist() == [5, 5, 5, 6]
    assert back.metrics[0].series.values.tolist() == [1.0, 2.0, 1.0, 3.0]
