from __future__ import annotations

import re
from pathlib import Path

import mlflow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from mlflow import MlflowClient

from mlflow_stability.errors import StabilityError
from mlflow_stability.tracking.run_files import RunImages, image_key


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    file = tmp_path / "picture.png"
    Figure((3, 2), dpi=50).savefig(file)
    return file


def new_run(uri: str) -> tuple[MlflowClient, str]:
    client = MlflowClient(tracking_uri=uri)
    return client, str(client.create_run("0").info.run_id)


def names(client: MlflowClient, run_id: str) -> list[str]:
    return [artifact.path for artifact in client.list_artifacts(run_id, "images")]


def test_a_picture_is_in_the_charts_of_its_run_with_its_step(sqlite_uri: str, picture: Path) -> None:
    client, run_id = new_run(sqlite_uri)
    images = RunImages(client, run_id)
    for step in (10, 500):
        images.log(picture, "stability/attention/h.0", step, 1000.5)
    result = names(client, run_id)
    assert len(result) == 4
    name = re.compile(
        r".*stability[~#]attention[~#]h\.0[+%]step[+%]500[+%]timestamp[+%]1000500[+%]"
    )  # by MLflow's version
    assert sum(name.match(item) is not None for item in result) == 2
    assert client.get_run(run_id).data.tags["mlflow.loggedImages"] == "True"
    assert images.steps("stability/attention") == {10, 500}


def test_a_second_courier_does_not_put_it_there_again(sqlite_uri: str, picture: Path) -> None:
    client, run_id = new_run(sqlite_uri)
    for _ in range(2):
        RunImages(client, run_id).log(picture, "stability/attention/h.0", 500, 1000.5)
    assert len(names(client, run_id)) == 2
    RunImages(client, run_id).log(picture, "stability/attention/h.0", 500, 2000.0)  # measured again, after a rollback
    assert len(names(client, run_id)) == 4


def test_one_whose_sending_broke_off_is_sent_again(sqlite_uri: str, picture: Path) -> None:
    client, run_id = new_run(sqlite_uri)
    RunImages(client, run_id).log(picture, "stability/attention/h.0", 500, 1000.5)
    folder = Path(client.get_run(run_id).info.artifact_uri.removeprefix("file://"), "images")
    next(folder.glob("*.webp")).unlink()
    images = RunImages(client, run_id)
    assert images.steps("stability/attention") == set()
    images.log(picture, "stability/attention/h.0", 500, 1000.5)
    assert len(list(folder.glob("*.webp"))) == 1


def test_pictures_of_the_script_are_not_counted(sqlite_uri: str, picture: Path) -> None:
    client, run_id = new_run(sqlite_uri)
    client.log_image(run_id, mlflow.Image(str(picture)), key="samples", step=7, synchronous=True)
    assert RunImages(client, run_id).steps("stability/attention") == set()


def test_an_unreachable_store_is_reported_in_one_sentence(picture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    client = MlflowClient(tracking_uri="http://127.0.0.1:9")
    with pytest.raises(StabilityError, match="Could not list the images"):
        RunImages(client, "0" * 32).log(picture, "stability/attention/h.0", 1, 1.0)


@given(st.text(min_size=1, max_size=400), st.text(min_size=1, max_size=400))
def test_every_name_becomes_a_key_that_mlflow_takes_and_no_two_share_one(expected: str, other: str) -> None:
    keys = [image_key("stability", "attention", 3, name) for name in (expected, other)]
    assert (keys[0] == keys[1]) == (expected == other)
    for key in keys:
        assert key.startswith("stability/attention/")
        assert key.count("/") == 2
        assert key.isascii()
        assert len(key) < 120


def test_an_ordinary_name_stays_as_it_is_behind_the_number_of_its_layer() -> None:
    assert image_key("stability_2", "attention", 7, "h.0.attn") == "stability_2/attention/L07_h.0.attn"


def test_what_a_card_shows_of_its_title_tells_layers_apart_and_sorts_them() -> None:
    keys = [image_key("stability", "attention", number, f"backbone.blocks.{number}") for number in range(48)]
    assert len({key[:23] for key in keys}) == 48  # as much as MLflow shows of it
    assert sorted(keys) == keys
