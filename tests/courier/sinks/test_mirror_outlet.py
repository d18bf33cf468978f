"""Scalars in other tools: the same as in MLflow, read back by the tools' own readers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from courier.staging import Training, kill
from figures.layers import normal, table
from journal.test_layer_tables import bare
from mlflow import MlflowClient
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util.tensor_util import make_ndarray
from waiting import wait_until

from mlflow_stability.alerts.alert import OUTLETS_VARIABLE, OutletSettings
from mlflow_stability.alerts.mirrors import Mirror, read_mirrors
from mlflow_stability.courier.deliver import SessionDelivery, ask_for_short_requests
from mlflow_stability.courier.progress import read_page
from mlflow_stability.errors import SettingsError
from mlflow_stability.importers.open_log import read
from mlflow_stability.journal.array_files import write_layer_table
from mlflow_stability.vocabulary.run import Closing

pytestmark = pytest.mark.usefixtures("blank_pictures")

BOARD = OutletSettings(mirrors=(Mirror("tensorboard", "board"),))
Points = dict[str, list[tuple[int, float]]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    ask_for_short_requests()
    return tmp_path / ".mlflow-stability"


def advance(session: SessionDelivery, until: Callable[[], object], seconds: float = 60.0) -> None:
    last = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < last, session.report()
        if not session.advance():
            time.sleep(0.02)


def on_the_board(folder: Path) -> Points:
    """The points of all event files, by key; each point as often as it is there."""
    result: Points = {}
    for step, value in values_in(folder):
        if value.metadata.plugin_data.plugin_name != "histograms":
            (number,) = value.tensor.float_val
            result.setdefault(value.tag, []).append((step, number))
    return {key: sorted(points) for key, points in result.items()}


def values_in(folder: Path) -> Iterator[tuple[int, Any]]:
    for file in folder.rglob("events.out.tfevents.*"):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                yield event.step, value


def histograms_in(folder: Path) -> list[tuple[int, str, float]]:
    """The step, the key and the number of values of each histogram."""
    result = [
        (step, value.tag, float(make_ndarray(value.tensor)[:, 2].sum()))
        for step, value in values_in(folder)
        if value.metadata.plugin_data.plugin_name == "histograms"
    ]
    return sorted(result)


def in_mlflow(uri: str, run_id: str) -> Points:
    client = MlflowClient(uri)
    return {
        key: sorted((point.step, point.value) for point in client.get_metric_history(run_id, key))
        for key in client.get_run(run_id).data.metrics
    }


def in_single_precision(points: Points) -> Points:
    """As event files have numbers."""
    return {key: [(step, float(np.float32(value))) for step, value in several] for key, several in points.items()}


@pytest.mark.slow
def test_tensorboard_has_the_points_of_mlflow_under_the_same_keys(root: Path, sqlite_uri: str, tmp_path: Path) -> None:
    training = Training(root, sqlite_uri, layer_metrics="parameters")
    training.train(1, 96)
    training.end(Closing("finished", "", 96, time.time()))
    session = SessionDelivery(training.folder, sqlite_uri, lambda: False, BOARD)
    advance(session, lambda: session.over)
    (run_id,) = session.report().run_ids
    (folder,) = (tmp_path / "board").iterdir()
    assert folder.name.endswith(run_id[:8])
    result = on_the_board(folder)
    assert result == in_single_precision(in_mlflow(sqlite_uri, run_id))
    assert len(result) > 4
    (imported,) = read(folder)
    assert {metric.name for metric in imported.metrics} == set(result)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["../../outside", "/outside"])
def test_the_name_of_a_run_is_not_a_path(root: Path, sqlite_uri: str, tmp_path: Path, name: str) -> None:
    training = Training(root, sqlite_uri, tags={"mlflow.runName": name})
    training.train(1, 20)
    training.end(Closing("finished", "", 20, time.time()))
    session = SessionDelivery(training.folder, sqlite_uri, lambda: False, BOARD)
    advance(session, lambda: session.over)
    (run_id,) = session.report().run_ids
    (file,) = tmp_path.rglob("events.out.tfevents.*")
    assert file.parent == tmp_path / "board" / f"{name.replace('/', '_')}-{run_id[:8]}"


@pytest.mark.slow
def test_tensorboard_has_the_histograms_of_layers(root: Path, sqlite_uri: str, tmp_path: Path) -> None:
    training = Training(root, sqlite_uri)
    training.train(1, 40)
    for step in (10, 20):
        keep_histograms(training, step)
    write_layer_table(training.journal.folder, bare(30))
    training.end(Closing("finished", "", 40, time.time()))
    session = SessionDelivery(training.folder, sqlite_uri, lambda: False, BOARD)
    advance(session, lambda: session.over)
    keys = [f"stability/histograms/{what}/{layer}" for what in ("gradient", "weight") for layer in ("head", "stem")]
    assert histograms_in(tmp_path / "board") == [(step, key, 4096.0) for step in (10, 20) for key in keys]


def keep_histograms(training: Training, step: int) -> None:
    for what in ("gradient", "weight"):
        write_layer_table(training.journal.folder, table(step, ["stem", "head"], [normal()], what))


@pytest.mark.slow
def test_a_killed_courier_leaves_no_point_out_and_none_twice(root: Path, sqlite_uri: str, tmp_path: Path) -> None:
    training = Training(root, sqlite_uri, interactive=True)
    courier = training.start_courier(**{OUTLETS_VARIABLE: BOARD.text()})
    training.train(1, 300)
    for step in range(10, 300, 10):
        keep_histograms(training, step)
    wait_until(lambda: list(training.folder.glob("*/mirror_tensorboard.json")), 60)
    training.train(301, 400)
    for step in range(300, 400, 10):
        keep_histograms(training, step)
    time.sleep(1.2)
    kill(courier)
    (file,) = (tmp_path / "board").rglob("events.out.tfevents.*")
    with file.open("ab") as written:
        written.write(b"half a record")
    training.train(401, 600)
    training.end(Closing("finished", "", 600, time.time()))
    (page,) = training.folder.glob("*/delivered.json")
    run_id = read_page(page)["run_id"]
    assert training.start_courier(**{OUTLETS_VARIABLE: BOARD.text()}).wait(120) == 0
    assert on_the_board(tmp_path / "board") == in_single_precision(in_mlflow(sqlite_uri, run_id))
    steps = [step for step, key, _ in histograms_in(tmp_path / "board") if key.endswith("weight/head")]
    assert steps == list(range(10, 400, 10))


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_reported_once_and_holds_nothing_up(
    root: Path, sqlite_uri: str, tmp_path: Path
) -> None:
    (tmp_path / "board").write_text("a file")
    training = Training(root, sqlite_uri, interactive=True)
    training.train(1, 50)
    session = SessionDelivery(training.folder, sqlite_uri, lambda: False, BOARD)
    advance(session, lambda: read_page(training.folder / "status.json").get("notices"))
    (notice,) = read_page(training.folder / "status.json")["notices"]
    assert notice.startswith("Mirroring to tensorboard failed (")
    assert session.caught_up or session.report().run_ids
    (tmp_path / "board").unlink()
    training.end(Closing("finished", "", 50, time.time()))
    advance(session, lambda: session.over)
    assert on_the_board(tmp_path / "board")


@pytest.mark.slow
def test_wandb_has_the_points_of_mlflow_in_an_offline_run(root: Path, sqlite_uri: str, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    training = Training(root, sqlite_uri)
    training.train(1, 96)
    training.end(Closing("finished", "", 96, time.time()))
    settings = OutletSettings(mirrors=(Mirror("wandb", "trial"),))
    environment = {OUTLETS_VARIABLE: settings.text(), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    assert training.start_courier(**environment).wait(120) == 0
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    (history,) = read(file)
    (run,) = MlflowClient(sqlite_uri).search_runs(["0"])
    assert history.name == run.info.run_name
    by_name = {
        metric.name: list(zip(metric.series.steps.tolist(), metric.series.values.tolist(), strict=True))
        for metric in history.metrics
    }
    assert by_name == in_mlflow(sqlite_uri, run.info.run_id)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("tensorbord:runs", "Did you mean 'tensorboard'?"),
        (3, "mirrors must be texts"),
        ([3], "mirrors can be 'tensorboard'"),
        (["tensorboard", "tensorboard:other"], "'tensorboard' twice"),
    ],
)
def test_a_mirror_that_there_is_not_is_refused(given: object, expected: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read_mirrors(given)
    assert expected in str(refused.value)


def test_a_tool_that_is_not_installed_is_asked_for_kindly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if pytest.importorskip("importlib.util").find_spec("wandb") is not None:
        pytest.skip("wandb is installed")
    (tmp_path / "wandb").mkdir()  # as W&B makes one, which is no package
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError, match=r"pip install 'mlflow-stability\[wandb\]'"):
        read_mirrors("wandb")


def test_mirrors_reach_the_courier_as_they_were_given() -> None:
    assert read_mirrors(["tensorboard:runs/", "otel:http://localhost:4318"]) == (
        Mirror("tensorboard", "runs/"),
        Mirror("otel", "http://localhost:4318"),
    )
