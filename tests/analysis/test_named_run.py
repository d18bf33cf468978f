from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from analysis.logs import falling
from analysis.stored_runs import store_run
from mlflow import MlflowClient

import mlflow_stability
from mlflow_stability.analysis.source import last_runs, resolve_source, run_called, run_id_of
from mlflow_stability.errors import RunNotFoundError, UnreadableLogError
from mlflow_stability.tracking.run_files import log_comparison


@pytest.fixture(params=["sqlite_uri", pytest.param("rest_server", marks=pytest.mark.slow)])
def uri(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    result = str(request.getfixturevalue(request.param))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", result)
    return result


def test_a_run_is_found_by_its_name_and_by_the_beginning_of_its_id(uri: str) -> None:
    run = store_run(uri, falling(), name="gpt small, it's mine")
    other = store_run(uri, falling(), name="other")
    assert run_called("gpt small, it's mine") == run
    assert run_called(run[:9]) == run_called(run[:9].upper()) == run
    assert run_id_of("other", uri) == other
    assert run_called("gpt") is None


def test_the_error_for_an_ambiguous_name_lists_the_runs(uri: str) -> None:
    runs = [store_run(uri, falling(), name="twin") for _ in range(2)]
    with pytest.raises(RunNotFoundError, match=r"^'twin' may mean 2 runs\. Give more of the id of one:\n") as raised:
        resolve_source("twin")
    for run in runs:
        assert f"\n  {run[:12]}  twin, experiment Default, started " in str(raised.value)


def test_the_error_for_an_unknown_name_suggests_the_nearest(uri: str) -> None:
    store_run(uri, falling(), name="gpt-small")
    with pytest.raises(UnreadableLogError, match=r"run id or run name: 'gpt-smal'\. Did you mean 'gpt-small'\?"):
        resolve_source("gpt-smal")
    with pytest.raises(RunNotFoundError, match=r"^No such run id or run name: 'gpt_small'\. Did you mean"):
        run_id_of("gpt_small")


def test_asking_for_the_last_run_raises_when_there_are_no_runs(sqlite_uri: str, tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match=r"^There is no run yet\."):
        last_runs(1, sqlite_uri)
    with pytest.raises(RunNotFoundError, match=r"^There is no run yet\. Runs were looked for in .*nothing\.db;"):
        last_runs(1, f"sqlite:///{tmp_path}/nothing.db")
    assert not (tmp_path / "nothing.db").exists()


def test_the_last_runs_are_those_that_were_started_last_and_no_reports(uri: str) -> None:
    first, second = (store_run(uri, falling(), name=name) for name in ("a", "b"))
    log_comparison("0", uri, {}, "a comparison")
    assert last_runs(1) == [second]
    assert last_runs(5, uri)[:2] == [second, first]


def test_runs_that_were_deleted_are_not_found_by_their_names(uri: str) -> None:
    run = store_run(uri, falling(), name="gone")
    MlflowClient(tracking_uri=uri).delete_run(run)
    assert run_called("gone") is None


@pytest.mark.slow
def test_every_public_function_takes_a_name(sqlite_uri: str) -> None:
    first, other = (store_run(sqlite_uri, falling(), name=name) for name in ("one", "two"))
    assert mlflow_stability.diagnose("one", sqlite_uri).source == first
    assert [item.source for item in mlflow_stability.diagnose_all(["two", first[:8]], sqlite_uri)] == [other, first]
    compared = mlflow_stability.compare(["one", other[:8]], baseline="two", tracking_uri=sqlite_uri, remember=False)
    assert {card.source for card in compared.cards} == {first, other}
    assert compared.gate is not None
    assert compared.gate.baseline == other


def test_a_store_of_files_is_searched_without_mlflow(tmp_path: Path) -> None:
    for number, (id_, name) in enumerate({"ab" * 16: "old", "cd" * 16: "newer"}.items()):
        run = tmp_path / "mlruns" / "3" / id_
        run.mkdir(parents=True)
        (run / "meta.yaml").write_text(f"run_id: {id_}\nrun_name: {name}\nstatus: 3\nstart_time: {number + 1}000\n")
    assert run_called("old") == "ab" * 16
    assert run_called("cdc") == "cd" * 16
    assert last_runs() == ["cd" * 16]


def test_runs_of_the_default_database_are_found_beside_their_artifacts(
    template_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlflow.tracking._tracking_service.utils._tracking_uri", None)
    shutil.copy(template_database, tmp_path / "mlflow.db")
    assert MlflowClient().tracking_uri == f"sqlite:///{tmp_path / 'mlflow.db'}"
    run = store_run(MlflowClient().tracking_uri, falling(), name="mine")
    (tmp_path / "mlruns" / "0" / run / "artifacts").mkdir(parents=True)
    assert last_runs() == [run]
    assert run_id_of("mine") == run


def test_a_run_is_found_by_a_name_that_looks_like_a_path(uri: str) -> None:
    for name in ("facebook/opt-125m", "gpt2.small"):
        run = store_run(uri, falling(), name=name)
        assert resolve_source(name).source == run
    with pytest.raises(UnreadableLogError, match=r"^No such file or folder: 'facebook/opt-12m'\. Did you mean 'face"):
        resolve_source("facebook/opt-12m")


def test_no_store_is_asked_about_a_source_that_can_only_be_a_path(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlflow_stability.analysis.source.run_called", lambda *_: pytest.fail("a store was asked"))
    for typed in (f"{tmp_path}/gone", "./gone.csv", "../gone", "~/gone"):
        with pytest.raises(UnreadableLogError, match=rf"^No such file or folder: '{typed}'\.$"):
            resolve_source(typed)


def test_a_run_is_found_by_a_name_with_both_kinds_of_quotes(uri: str) -> None:
    run = store_run(uri, falling(), name="""it's "both" at 100%""")
    store_run(uri, falling(), name="""it_s "both" at 100%""")
    assert run_called("""it's "both" at 100%""") == run


def test_in_a_store_of_files_a_run_is_found_by_a_name_that_yaml_escapes_or_wraps(tmp_path: Path) -> None:
    names = ["täst 🚀", "'quoted'", "a long name " * 20 + "ends", "facebook/opt-125m", """it's "both\""""]
    for number, name in enumerate(names):
        run = tmp_path / "mlruns" / "3" / f"{number:032x}"
        (run / "tags").mkdir(parents=True)
        meta = {"run_id": run.name, "run_name": name, "status": 3, "start_time": 1000 + number}
        (run / "meta.yaml").write_text(yaml.safe_dump(meta), encoding="utf-8")
        (run / "tags" / "mlflow.runName").write_text(name, encoding="utf-8")
    assert [resolve_source(name).source for name in names] == [f"{number:032x}" for number in range(len(names))]


def test_a_missing_path_is_reported_as_missing_when_the_store_is_unreachable(uri: str) -> None:
    for typed in ("logs/train", "train.csv"):
        with pytest.raises(UnreadableLogError, match=rf"^No such file or folder: '{typed}'\.$"):
            resolve_source(typed, "http://127.0.0.1:9")
