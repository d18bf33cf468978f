"""Tables of layers follow the recording into its run, each once."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest
from figures.layers import gpt_layers, normal, table
from journal.test_layer_tables import bare, equal
from mlflow import MlflowClient

from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.sinks import file_sinks
from mlflow_stability.courier.sinks.file_sinks import LayerSink
from mlflow_stability.errors import TrackingError
from mlflow_stability.journal.array_files import layer_table_files, write_layer_table
from mlflow_stability.tracking.read.run_record import read_layer_part
from mlflow_stability.tracking.run_writer import RunWriter
from mlflow_stability.vocabulary.measured.layer_arrays import LayerTable


class Shelf:
    """The border of tracking: keeps what it is sent."""

    def __init__(self) -> None:
        self.parts: dict[str, list[LayerTable]] = {}
        self.away = False

    def upload(self, file: Path, folder: str) -> None:
        if self.away:
            raise TrackingError("away")
        self.parts[f"{folder}/{file.name}"] = read_layer_part(file)

    @property
    def steps(self) -> list[int]:
        return [part.step for name in sorted(self.parts) for part in self.parts[name]]


def stream_of(folder: Path, shelf: Shelf, **delivered: int) -> LayerSink:
    return LayerSink(Delivered(folder, **delivered), shelf, time.time())


def drive(stream: LayerSink) -> None:
    while not stream.done:
        stream.flush(over=True)


def keep(folder: Path, steps: range) -> list[LayerTable]:
    tables = [bare(step, what) for step in steps for what in ("gradient", "weight")]
    for item in tables:
        write_layer_table(folder, item)
    return tables


def test_every_table_arrives_and_stays_where_it_is(tmp_path: Path) -> None:
    tables, shelf = keep(tmp_path, range(100, 1000, 100)), Shelf()
    drive(stream_of(tmp_path, shelf))
    assert list(shelf.parts) == ["stability/data/layers/part-000-000000000100.parquet"]
    (result,) = shelf.parts.values()
    assert all(equal(first, other) for first, other in zip(result, tables, strict=True))
    assert len(layer_table_files(tmp_path)) == len(tables)


def test_a_new_courier_goes_on_where_the_one_before_was(tmp_path: Path) -> None:
    shelf = Shelf()
    keep(tmp_path, range(100, 300, 100))
    drive(stream_of(tmp_path, shelf))
    keep(tmp_path, range(300, 500, 100))
    drive(stream_of(tmp_path, shelf))
    assert shelf.steps == [100, 100, 200, 200, 300, 300, 400, 400]
    assert len(shelf.parts) == 2


def test_tables_sent_again_after_a_lost_state_are_not_duplicated(tmp_path: Path) -> None:
    shelf = Shelf()
    keep(tmp_path, range(100, 300, 100))
    drive(stream_of(tmp_path, shelf))
    (tmp_path / file_sinks.PAGE).unlink()
    keep(tmp_path, range(300, 400, 100))
    drive(stream_of(tmp_path, shelf))
    assert shelf.steps == [100, 100, 200, 200, 300, 300]


def test_while_training_goes_on_the_newest_step_waits_for_its_second_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf()
    stream = stream_of(tmp_path, shelf)
    keep(tmp_path, range(100, 200, 100))
    write_layer_table(tmp_path, bare(200, "gradient"))
    assert not stream.flush(over=False)
    assert shelf.parts == {}
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    stream.flush(over=False)
    assert shelf.steps == [100, 100]
    write_layer_table(tmp_path, bare(200, "weight"))
    drive(stream)
    assert shelf.steps == [100, 100, 200, 200]


def test_more_than_fits_into_memory_goes_in_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sinks, "_MOST_BYTES", 1_000)
    shelf = Shelf()
    keep(tmp_path, range(100, 1000, 100))
    drive(stream_of(tmp_path, shelf))
    assert len(shelf.parts) > 2
    assert shelf.steps == [step for step in range(100, 1000, 100) for _ in range(2)]


def test_a_step_too_large_for_one_part_is_still_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sinks, "_MOST_BYTES", 10)
    shelf = Shelf()
    keep(tmp_path, range(100, 300, 100))
    drive(stream_of(tmp_path, shelf))
    assert shelf.steps == [100, 100, 200, 200]


def test_nothing_is_lost_while_the_store_does_not_answer(tmp_path: Path) -> None:
    shelf = Shelf()
    keep(tmp_path, range(100, 300, 100))
    shelf.away = True
    stream = stream_of(tmp_path, shelf)
    with pytest.raises(TrackingError):
        stream.flush(over=True)
    assert not stream.done
    shelf.away = False
    drive(stream)
    assert shelf.steps == [100, 100, 200, 200]


def test_a_damaged_table_is_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf()
    keep(tmp_path, range(100, 300, 100))
    layer_table_files(tmp_path)[0].path.write_bytes(b"torn")
    with caplog.at_level(logging.WARNING):
        drive(stream_of(tmp_path, shelf))
    assert shelf.steps == [100, 200, 200]
    assert len(caplog.messages) == 1


def test_steps_are_those_that_the_run_counts(tmp_path: Path) -> None:
    shelf = Shelf()
    keep(tmp_path, range(100, 200, 100))
    drive(stream_of(tmp_path, shelf, number=2, offset=5000))
    assert list(shelf.parts) == ["stability/data/layers/part-002-000000005100.parquet"]
    assert shelf.steps == [5100, 5100]


def test_tables_arrive_in_a_real_run(tmp_path: Path, sqlite_uri: str) -> None:
    values = table(1000, gpt_layers(12), [normal()])
    write_layer_table(tmp_path, values)
    client = MlflowClient(tracking_uri=sqlite_uri)
    run_id = str(client.create_run("0").info.run_id)
    drive(LayerSink(Delivered(tmp_path), RunWriter(client, run_id), time.time()))
    (part,) = client.list_artifacts(run_id, "stability/data/layers")
    (back,) = read_layer_part(Path(client.download_artifacts(run_id, part.path, str(tmp_path))))
    assert equal(back, values)


def test_statistics_are_metrics_where_they_were_asked_for(tmp_path: Path, sqlite_uri: str) -> None:
    write_layer_table(tmp_path, table(100, ["blocks.0.a", "blocks.0.b", "head"], [normal(), normal(3.0)], "weight"))
    client = MlflowClient(sqlite_uri)
    for asked, layers in (("blocks", {"blocks.0", "head"}), ("parameters", {"blocks.0.a", "blocks.0.b", "head"})):
        run_id = client.create_run("0").info.run_id
        for _ in range(2):  # the second time the store has them already
            (tmp_path / "layers.json").unlink(missing_ok=True)
            drive(LayerSink(Delivered(tmp_path), RunWriter(client, run_id), time.time(), asked))
        metrics = client.get_run(run_id).data.metrics
        names = ("mean", "std", "abs_max", "zeros")
        assert set(metrics) == {f"stability/layers/weight_{name}/{layer}" for name in names for layer in layers}
        assert len(client.get_metric_history(run_id, "stability/layers/weight_std/head")) == 1
        if asked == "parameters":
            assert metrics["stability/layers/weight_std/head"] == pytest.approx(3.0, rel=0.1)
        else:
            assert metrics["stability/layers/weight_abs_max/blocks.0"] > 6  # the largest of its layers
