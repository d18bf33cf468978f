from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_stability.analysis.diagnose import diagnose
from mlflow_stability.analysis.source import run_folder

RUN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of files as MLflow used to make them, with one run."""
    run = tmp_path / "mlruns" / "3" / RUN
    (run / "metrics").mkdir(parents=True)
    (run / "params").mkdir()
    (run / "meta.yaml").write_text(f"run_id: {RUN}\nrun_name: old\nstatus: 3\n")
    points = [f"{1000 + step} {2 + 3 * 0.99**step} {step}\n" for step in range(300)]
    (run / "metrics" / "loss").write_text("".join(points))
    return tmp_path / "mlruns"


def test_a_run_id_is_found_in_a_store_of_files_that_mlflow_no_longer_opens(store: Path) -> None:
    diagnosis = diagnose(RUN)
    assert diagnosis.source == RUN
    assert diagnosis.name == "old"
    assert diagnosis.outcome == "healthy"


@pytest.mark.parametrize("form", ["{path}", "file:{path}", "file://{path}"])
def test_the_store_may_be_named_in_any_way(store: Path, form: str) -> None:
    assert run_folder(RUN, form.format(path=store)) == store / "3" / RUN


def test_the_environment_is_asked_as_mlflow_does(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///elsewhere.db")
    assert run_folder(RUN) is None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(store))
    assert run_folder(RUN) == store / "3" / RUN


@pytest.mark.parametrize("uri", ["http://127.0.0.1:5000", "sqlite:///mlflow.db", "databricks://profile"])
def test_servers_and_databases_have_no_folders(store: Path, uri: str) -> None:
    assert run_folder(RUN, uri) is None
