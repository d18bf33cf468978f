"""At the end of a training its last attention maps are drawn first, and the run says what is left out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from courier.sinks.test_attention_sinks import Shelf, keep, no_drawing
from courier.staging import Training
from figures.drawings import texts
from matplotlib.figure import Figure
from mlflow import MlflowClient

from mlflow_stability.courier.deliver import deliver_session
from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.sinks import attention_sinks
from mlflow_stability.courier.sinks.attention_sinks import AttentionPictures
from mlflow_stability.errors import TrackingError
from mlflow_stability.figures.style import sharp_png
from mlflow_stability.vocabulary.run import Closing


class Clock:
    """Time that passes when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def pictures_of(
    folder: Path, shelf: Shelf, alive: Callable[[], bool] = lambda: False, complete: bool = False
) -> AttentionPictures:
    return AttentionPictures(Delivered(folder, complete=complete), shelf, alive)


def to_the_end(pictures: AttentionPictures) -> None:
    while not pictures.done:
        pictures.flush(over=True)


def test_the_last_round_is_drawn_before_what_is_left_of_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_drawing(monkeypatch)
    clock = Clock(monkeypatch)
    keep(tmp_path, [10, 25, 50], layers=3)
    shelf = Shelf()
    pictures = pictures_of(tmp_path, shelf)
    for _ in range(2):  # while the training goes on: two layers of the first round
        pictures.flush(over=False)
        clock.now += 600
    to_the_end(pictures)
    assert [step for _, step in shelf.charted] == [10, 10, 50, 50, 50, 10, 25, 25, 25]
    assert len(shelf.pictures) == 9  # nothing was drawn twice
    assert shelf.tags == []


def test_the_end_of_the_training_waits_for_pictures_a_few_seconds_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_drawing(monkeypatch)
    clock = Clock(monkeypatch)
    keep(tmp_path, [10, 500], layers=3)
    shelf = Shelf()
    pictures = pictures_of(tmp_path, shelf)
    pictures.flush(over=False)
    pictures.flush(over=True)
    assert pictures.awaited
    clock.now += 11
    pictures.flush(over=True)
    assert not pictures.awaited
    assert shelf.tags[0].startswith("4 being drawn.")
    to_the_end(pictures)
    assert len(shelf.pictures) == 6
    assert shelf.tags[1:] == ["all drawn"]


def test_a_process_that_may_train_again_is_disturbed_by_a_twentieth_of_a_core_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)

    def drawn(*_: object) -> bytes:
        clock.now += 6.0
        return b"\x89PNG"

    monkeypatch.setattr(attention_sinks, "png_of", drawn)
    alone = tmp_path / "session" / "recording"  # recordings side by side share the twentieth
    alone.mkdir(parents=True)
    keep(alone, [10], layers=6)
    shelf, lives = Shelf(), [True]
    pictures = pictures_of(alone, shelf, lambda: lives[0])
    for _ in range(5):
        pictures.flush(over=True)
    assert len(shelf.pictures) == 2  # within the seconds that were waited
    clock.now += 120
    for _ in range(5):
        pictures.flush(over=True)
    assert len(shelf.pictures) == 3
    lives[0] = False
    to_the_end(pictures)
    assert len(shelf.pictures) == 6


def test_a_tag_of_the_run_names_the_pictures_that_there_was_no_time_to_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(monkeypatch)

    def drawn(*_: object) -> bytes:
        clock.now += 250.0
        return b"\x89PNG"

    monkeypatch.setattr(attention_sinks, "png_of", drawn)
    keep(tmp_path, [10, 500], layers=2)
    shelf = Shelf()
    with caplog.at_level(logging.WARNING):
        to_the_end(pictures_of(tmp_path, shelf))
    assert [step for _, step in shelf.charted] == [500, 500, 10]
    assert shelf.tags[-1] == "missing: 1 of step 10. attention_heatmap() draws any layer from the maps."
    assert sum("1 of step 10" in line for line in caplog.messages) == 1


def test_no_picture_is_lost_in_a_store_outage_of_any_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_drawing(monkeypatch)
    clock = Clock(monkeypatch)
    keep(tmp_path, [10, 500])
    shelf = Shelf()
    pictures = pictures_of(tmp_path, shelf)
    shelf.trouble = TrackingError("away")
    for _ in range(2):
        with pytest.raises(TrackingError):
            pictures.flush(over=True)
        clock.now += 3600
    shelf.trouble = None
    to_the_end(pictures)
    assert len(shelf.pictures) == 2


def test_a_round_that_could_not_be_begun_for_an_outage_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_drawing(monkeypatch)
    keep(tmp_path, [10, 500])
    shelf = Shelf()
    pictures = pictures_of(tmp_path, shelf)
    steps = shelf.steps

    def away(_: str) -> set[int]:
        raise TrackingError("away")

    shelf.steps = away  # type: ignore[method-assign]
    for over in (False, True):
        with pytest.raises(TrackingError):
            pictures.flush(over=over)
    shelf.steps = steps  # type: ignore[method-assign]
    to_the_end(pictures)
    assert len(shelf.pictures) == 2


def test_a_courier_that_starts_after_the_end_draws_the_rest_and_sets_the_tag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_drawing(monkeypatch)
    clock = Clock(monkeypatch)
    keep(tmp_path, [10, 500], layers=2)
    shelf = Shelf()
    first = pictures_of(tmp_path, shelf)
    first.flush(over=True)
    clock.now += 11
    first.flush(over=True)
    second = pictures_of(tmp_path, shelf, complete=True)
    assert not second.awaited
    to_the_end(second)
    assert len(shelf.pictures) == 4
    assert shelf.tags[-1] == "all drawn"


def test_a_recording_without_attention_gets_no_tag(tmp_path: Path) -> None:
    shelf = Shelf()
    to_the_end(pictures_of(tmp_path, shelf, complete=True))
    assert shelf.tags == []


def test_the_picture_says_how_many_layers_there_are_where_only_some_have_maps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []

    def kept(figure: Figure) -> bytes:
        figures.append(figure)
        return b"\x89PNG"

    monkeypatch.setattr("mlflow_stability.figures.style.sharp_png", kept)
    for item in keep(tmp_path, [10], layers=24):
        if item.layer_number % 2 == 0 and item.layer_number != 0:  # the training itself keeps maps of some alone
            next(tmp_path.rglob(f"*-{item.layer_number:04d}-*.arrays")).unlink()
    to_the_end(pictures_of(tmp_path, Shelf()))
    assert len(figures) == 12
    assert "12 of 24 layers drawn" in " ".join(texts(figures[0]))


@pytest.mark.slow
def test_delivery_is_reported_complete_while_pictures_are_still_being_drawn(
    tmp_path: Path, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path / ".mlflow-stability", sqlite_uri)
    folder, client, seen = training.journal.folder, MlflowClient(tracking_uri=sqlite_uri), []

    def drawn(*_: object) -> bytes:
        runs = client.search_runs(["0"])[0]
        seen.append((Delivered.read(folder).complete, runs.info.status, attention_sinks.TAG in runs.data.tags))
        return sharp_png(Figure((1, 1)))

    monkeypatch.setattr(attention_sinks, "png_of", drawn)
    monkeypatch.setattr(attention_sinks, "_AWAITED", 0.0)
    training.train(1, 20)
    keep(folder, [10, 20], layers=2)
    training.end(Closing("finished", "", 20, time.time()))
    report = deliver_session(training.folder, sqlite_uri)
    assert (report.delivered, report.remaining) == (1, 0)
    assert len(seen) == 4
    assert (seen[0], seen[-1]) == ((False, "RUNNING", False), (True, "FINISHED", True))
    (run,) = client.search_runs(["0"])
    assert run.data.tags[attention_sinks.TAG] == "all drawn"
    assert not folder.exists()
