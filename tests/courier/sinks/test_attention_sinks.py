"""Attention maps and their pictures follow the recording into its run, and nothing waits for one that does not."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from courier.staging import Training
from figures.attention import attention, same
from mlflow import MlflowClient
from waiting import wait_until

from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.sinks import attention_sinks
from mlflow_stability.courier.sinks.attention_sinks import PAGE, AttentionPictures, AttentionSink, Thinning
from mlflow_stability.errors import TrackingError
from mlflow_stability.journal.array_files import attention_map_files, write_attention_map
from mlflow_stability.tracking.artifacts import attention_part, read_attention_part
from mlflow_stability.tracking.client import RefusedError
from mlflow_stability.vocabulary.measured.layer_arrays import AttentionMap
from mlflow_stability.vocabulary.run import Closing


class Shelf:
    """The border of tracking: keeps what it is sent, while it takes anything."""

    def __init__(self) -> None:
        self.maps: dict[str, list[AttentionMap]] = {}
        self.pictures: list[str] = []
        self.charted: list[tuple[str, int]] = []
        self.begun: list[tuple[str, int]] = []
        """Pictures at step 0, where MLflow opens a card."""
        self.trouble: Exception | None = None
        self.no_images = False
        self.tags: list[str] = []

    def upload(self, file: Path, folder: str) -> None:
        if self.trouble is not None:
            raise self.trouble
        if attention_part(file.name) is not None:
            self.maps[f"{folder}/{file.name}"] = read_attention_part(file)
            return
        assert file.read_bytes().startswith(b"\x89PNG")
        self.pictures.append(f"{folder}/{file.name}")

    def images(self) -> Shelf:
        return self

    def steps(self, section: str) -> set[int]:
        return {step for key, step in self.charted if key.startswith(section)}

    def holds(self, key: str, step: int, _: float) -> bool:
        return (key, step) in self.charted

    def set_tags(self, tags: dict[str, str]) -> None:
        self.tags.append(tags[attention_sinks.TAG])

    def log(self, file: Path, key: str, step: int, _: float) -> None:
        if self.no_images:
            raise RefusedError("no images here")
        (self.charted if step else self.begun).append((key, step))

    @property
    def steps_of_maps(self) -> list[int]:
        return [maps[0].step for _, maps in sorted(self.maps.items())]


Both = tuple[AttentionSink, AttentionPictures]


def both(folder: Path, shelf: Shelf, **delivered: int) -> Both:
    state = Delivered(folder, **delivered)
    return AttentionSink(state, shelf), AttentionPictures(state, shelf)


def drive(streams: Both) -> None:
    for stream in streams:
        while not stream.done:
            stream.flush(over=True)


def keep(folder: Path, steps: range | list[int], layers: int = 1, attempt: int = 0) -> list[AttentionMap]:
    maps = [
        attention(1, step=step, attempt=attempt, number=number, layer=f"h.{number}")
        for step in steps
        for number in range(layers)
    ]
    for item in maps:
        write_attention_map(folder, item)
    return maps


def age(folder: Path) -> None:
    """What was written was written long ago."""
    for file in attention_map_files(folder):
        os.utime(file.path, (time.time() - 100, time.time() - 100))


@pytest.mark.slow
def test_maps_and_pictures_of_every_layer_arrive_and_their_files_go(tmp_path: Path) -> None:
    maps, shelf = keep(tmp_path, [10, 500], layers=2), Shelf()
    drive(both(tmp_path, shelf))
    assert list(shelf.maps) == [f"stability/data/attention/part-000-0000-{step:012d}.npz" for step in (10, 500)]
    items = [item for part in shelf.maps.values() for item in part]
    assert all(same(first, other) for first, other in zip(items, maps, strict=True))
    assert shelf.pictures == [
        f"stability/attention/step_{step:06d}_layer{layer}.png" for step in (500, 10) for layer in (0, 1)
    ]
    assert shelf.charted == [
        (f"stability/attention/L0{layer}_h.{layer}", step) for step in (500, 10) for layer in (0, 1)
    ]
    assert shelf.begun == [("stability/attention/L00_h.0", 0), ("stability/attention/L01_h.1", 0)]
    assert shelf.tags == []
    assert attention_map_files(tmp_path) == []


@pytest.mark.slow
def test_a_map_stays_until_it_is_both_sent_and_drawn(tmp_path: Path) -> None:
    keep(tmp_path, [10, 500])
    maps, pictures = both(tmp_path, Shelf())
    while not maps.done:
        maps.flush(over=True)
    assert len(attention_map_files(tmp_path)) == 2
    pictures.flush(over=True)
    assert len(attention_map_files(tmp_path)) == 2
    assert not pictures.done
    while not pictures.done:
        pictures.flush(over=True)
    assert attention_map_files(tmp_path) == []


def test_while_training_goes_on_the_newest_round_waits_until_it_is_whole(tmp_path: Path) -> None:
    keep(tmp_path, [10])
    shelf = Shelf()
    streams = both(tmp_path, shelf)
    assert not any(stream.flush(over=False) for stream in streams)
    age(tmp_path)
    assert all(stream.flush(over=False) for stream in streams)
    assert (shelf.steps_of_maps, shelf.charted) == ([10], [("stability/attention/L00_h.0", 10)])
    assert not any(stream.done for stream in streams)


@pytest.mark.slow
def test_drawing_makes_a_pause_while_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path, [10, 500, 1000])
    shelf = Shelf()
    _, pictures = both(tmp_path, shelf)
    assert pictures.flush(over=False)
    assert not pictures.flush(over=False)
    assert len(shelf.pictures) == 1
    later = time.monotonic() + 600
    monkeypatch.setattr(time, "monotonic", lambda: later)
    pictures.flush(over=False)
    assert len(shelf.pictures) == 2


@pytest.mark.slow
def test_a_new_courier_goes_on_where_the_one_before_was(tmp_path: Path) -> None:
    shelf = Shelf()
    keep(tmp_path, [10, 500])
    drive(both(tmp_path, shelf))
    keep(tmp_path, [1000])
    drive(both(tmp_path, shelf))
    assert shelf.steps_of_maps == [10, 500, 1000]
    assert [step for _, step in shelf.charted] == [500, 10, 1000]


@pytest.mark.slow
def test_steps_that_came_again_after_a_rollback_are_kept_beside_the_first(tmp_path: Path) -> None:
    shelf = Shelf()
    keep(tmp_path, [500, 1000])
    keep(tmp_path, [500], attempt=1)
    drive(both(tmp_path, shelf))
    assert shelf.steps_of_maps == [500, 1000, 500]
    assert shelf.pictures[0] == "stability/attention/step_000500_layer0_attempt1.png"


def test_steps_are_those_that_the_run_counts(tmp_path: Path) -> None:
    shelf = Shelf()
    keep(tmp_path, [500])
    drive(both(tmp_path, shelf, number=1, offset=4000))
    assert shelf.steps_of_maps == [4500]
    assert shelf.pictures == ["stability/attention/step_004500_layer0-2.png"]
    assert shelf.charted == [("stability/attention/L00_h.0", 4500)]


@pytest.mark.slow
def test_a_long_training_has_twenty_steps_in_its_chart_and_more_as_maps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_drawing(monkeypatch)
    shelf = Shelf()
    for number in range(1, 4):  # a run that was resumed again and again: twenty in all
        folder = tmp_path / str(number)
        folder.mkdir()
        keep(folder, range(10, 1010, 10))
        drive(both(folder, shelf, number=number, offset=1000 * (number - 1)))
        assert shelf.steps_of_maps[-1] == 1000 * number
        assert len(shelf.steps("stability/attention")) <= 20
        assert 30 < len(shelf.maps) / number < 50
    assert len(shelf.steps("stability/attention")) == 20
    assert {10, 20, 1000} <= shelf.steps("stability/attention")


@pytest.mark.parametrize("rounds", [1, 8, 100, 5000])
def test_thinning_keeps_the_first_rounds_and_never_too_many(rounds: int) -> None:
    kept = [number for number in range(1, rounds + 1) if attention_sinks.PICTURES_THINNING.keeps(number)]
    assert kept[:8] == list(range(1, min(8, rounds) + 1))
    assert len(kept) <= 19
    gaps = [later - earlier for earlier, later in pairwise(kept)]
    assert gaps == sorted(gaps)
    assert sum(Thinning(20, 1.1, 100).keeps(number) for number in range(1, rounds + 1)) <= 100
    assert not Thinning(dense=3, growth=2.0, most=3).keeps(6)


def test_twelve_evenly_chosen_layers_are_drawn_and_the_maps_of_all_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_drawing(monkeypatch)
    shelf = Shelf()
    keep(tmp_path, [10], layers=48)
    drive(both(tmp_path, shelf))
    drawn = [int(key.rpartition(".")[2]) for key, _ in shelf.charted]
    assert (len(drawn), drawn[0], drawn[-1]) == (12, 0, 47)
    assert {later - earlier for earlier, later in pairwise(drawn)} <= {4, 5}
    assert len(next(iter(shelf.maps.values()))) == 48


def test_first_layers_of_two_models_have_files_of_their_own(tmp_path: Path) -> None:
    shelf = Shelf()
    for name in ("encoder", "decoder"):
        write_attention_map(tmp_path, attention(1, layer=name))
    drive(both(tmp_path, shelf))
    assert len(set(shelf.pictures)) == 2


@pytest.mark.slow
def test_nothing_is_lost_while_the_store_does_not_answer(tmp_path: Path) -> None:
    shelf = Shelf()
    keep(tmp_path, [10, 500])
    streams = both(tmp_path, shelf)
    shelf.trouble = TrackingError("away")
    for stream in streams:
        for _ in range(2):
            with pytest.raises(TrackingError):
                stream.flush(over=True)
    shelf.trouble = None
    drive(streams)
    assert shelf.steps_of_maps == [10, 500]
    assert sorted(step for _, step in shelf.charted) == [10, 500]


@pytest.mark.slow
def test_pictures_that_are_refused_or_cannot_be_drawn_are_reported_once_and_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keep(tmp_path, [10, 500, 1000], layers=2)
    shelf = Shelf()
    shelf.no_images = True
    with caplog.at_level(logging.WARNING):
        drive(both(tmp_path, shelf))
    assert len(shelf.pictures) == 6
    assert sum("no images here" in line for line in caplog.messages) == 1
    keep(tmp_path, [1500, 2000])
    monkeypatch.setattr("mlflow_stability.figures.attention_heatmap.attention_heatmap", lambda *_: 1 / 0)
    with caplog.at_level(logging.WARNING):
        drive(both(tmp_path, shelf))
    assert sum("ZeroDivisionError" in line for line in caplog.messages) == 1
    assert shelf.steps_of_maps == [10, 500, 1000, 1500, 2000]


def test_only_the_damaged_map_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keep(tmp_path, [10], layers=2)
    attention_map_files(tmp_path)[0].path.write_bytes(b"torn")
    shelf = Shelf()
    with caplog.at_level(logging.WARNING):
        drive(both(tmp_path, shelf))
    assert [[table.layer for table in maps] for maps in shelf.maps.values()] == [["h.1"]]
    assert shelf.charted == [("stability/attention/L01_h.1", 10)]


@pytest.mark.slow
def test_a_page_that_finds_no_room_keeps_the_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlflow_stability.courier.sinks.attention_sinks.write_page", lambda *_: False)
    keep(tmp_path, [10, 500])
    shelf = Shelf()
    drive(both(tmp_path, shelf))
    assert shelf.steps_of_maps == [10, 500]
    assert len(attention_map_files(tmp_path)) == 2
    assert not (tmp_path / PAGE).exists()


@pytest.mark.slow
def test_a_real_courier_delivers_maps_and_pictures_and_removes_the_recording(tmp_path: Path, rest_server: str) -> None:
    uri = rest_server
    client = MlflowClient(tracking_uri=uri)
    run_id = client.create_run("0").info.run_id
    training = Training(tmp_path / ".mlflow-stability", uri, run_id=run_id, resumed=True)
    folder = training.journal.folder
    training.train(1, 20)
    keep(folder, [10, 20], layers=2)
    courier = training.start_courier()
    training.train(21, 30)
    training.end(Closing("finished", "", 30, time.time()))
    wait_until(lambda: not folder.exists())
    courier.wait(60)
    listed = [artifact.path for artifact in client.list_artifacts(run_id, "stability/attention") if not artifact.is_dir]
    assert len(listed) == 4
    images = [artifact.path.rpartition("/")[2] for artifact in client.list_artifacts(run_id, "images")]
    keys = Counter(name.split("+")[0] for name in images if name.endswith(".png"))
    # Two measured steps, and the first of them once more at step 0, where MLflow opens its card.
    assert keys == {"stability~attention~L00_h.0": 3, "stability~attention~L01_h.1": 3}
    assert len(client.list_artifacts(run_id, "stability/data/attention")) == 2


def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture costs a second; what is tested is which of them there are."""
    monkeypatch.setattr(attention_sinks, "png_of", lambda *_: b"\x89PNG")
