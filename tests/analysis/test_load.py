import math

import numpy as np
import pytest
from figures.layers import normal, table
from mlflow import MlflowClient

from mlflow_stability.analysis.load import load_run
from mlflow_stability.errors import RunNotFoundError, SettingsError, TrackingError
from mlflow_stability.tracking.artifacts import LAYER_TABLES_FOLDER, RECORD_FOLDER
from mlflow_stability.tracking.read.run_record import PartBuffer, part_name, write_layer_part
from mlflow_stability.tracking.run_writer import RunWriter
from mlflow_stability.tracking.thinning import Point
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading

LOSS, RATE = Signal("loss"), Signal("learning_rate", "group_1")


@pytest.fixture
def writer(sqlite_uri):
    client = MlflowClient(sqlite_uri)
    return RunWriter(client, client.create_run("0").info.run_id)


def write_part(writer, folder, recording, offset, readings):
    buffer = PartBuffer()
    for reading in readings:
        buffer.add(reading, reading.step)
    file = folder / part_name(recording, offset)
    buffer.write(file, recording)
    writer.upload(file, RECORD_FOLDER)


def test_a_run_is_one_row_for_each_step(writer, sqlite_uri, tmp_path):
    write_part(writer, tmp_path, 0, 0, [StepReading(1, (LOSS, RATE), (3.0, 0.1), 0, 10.0)])
    write_part(
        writer,
        tmp_path,
        0,
        100,
        [StepReading(2, (LOSS,), (math.inf,), 0, 11.0), StepReading(3, (RATE,), (0.2,), 1, 12.0)],
    )
    table = load_run(writer.run_id, sqlite_uri)
    assert list(table.columns) == ["recording", "attempt", "step", "time", "loss", "learning_rate@group_1"]
    assert table["step"].tolist() == [1, 2, 3]
    assert table["attempt"].tolist() == [0, 0, 1]
    assert table["time"].tolist() == [10.0, 11.0, 12.0]
    np.testing.assert_array_equal(table["loss"], [3.0, math.inf, math.nan])
    np.testing.assert_array_equal(table["learning_rate@group_1"], [0.1, math.nan, 0.2])


def test_a_run_is_one_row_for_each_value_if_asked(writer, sqlite_uri, tmp_path):
    write_part(writer, tmp_path, 0, 0, [StepReading(1, (LOSS, RATE), (math.nan, 0.1), 0, 10.0)])
    table = load_run(writer.run_id, sqlite_uri, layout="long")
    assert list(table.columns) == ["recording", "attempt", "step", "time", "quantity", "place", "value"]
    assert table["quantity"].tolist() == ["loss", "learning_rate"]
    assert table["place"].tolist() == ["", "group_1"]
    assert math.isnan(table["value"][0])


def test_without_a_record_the_metric_tables_are_read_with_their_infinities(writer, sqlite_uri, caplog):
    writer.log([Point(LOSS, 1, 2.0, 5.0), Point(LOSS, 2, math.inf, 6.0), Point(RATE, 2, 0.1, 6.0)], "stability")
    writer.log([Point(LOSS, 1, 7.0, 5.0)], "stability_2")
    table = load_run(writer.run_id, sqlite_uri)
    np.testing.assert_array_equal(table["loss"], [2.0, math.inf, 7.0])
    assert table["recording"].tolist() == [0, 0, 1]
    assert "no full record" in caplog.text


def test_a_part_that_is_half_there_is_left_out_and_named(writer, sqlite_uri, tmp_path, caplog):
    write_part(writer, tmp_path, 0, 0, [StepReading(1, (LOSS,), (3.0,), 0, 10.0)])
    torn = tmp_path / part_name(0, 100)
    torn.write_bytes((tmp_path / part_name(0, 0)).read_bytes()[:-50])
    writer.upload(torn, RECORD_FOLDER)
    assert load_run(writer.run_id, sqlite_uri)["loss"].tolist() == [3.0]
    assert torn.name in caplog.text


def test_a_run_that_is_not_there_is_named_with_the_place_where_it_was_looked_for(sqlite_uri):
    with pytest.raises(
        RunNotFoundError, match=r"run id or run name: 'ab12'\. Runs were looked for in sqlite:.*tracking_uri="
    ):
        load_run("ab12", sqlite_uri)


def test_a_run_without_anything_of_ours_says_what_can_be_done(writer, sqlite_uri):
    with pytest.raises(RunNotFoundError, match=r"autolog\(\).*sync"):
        load_run(writer.run_id, sqlite_uri)


def test_a_server_that_is_away_is_one_sentence(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(TrackingError, match="does not answer"):
        load_run("ab12", "http://user:s3cret@127.0.0.1:9")


def test_another_layout_is_refused(sqlite_uri):
    with pytest.raises(SettingsError, match="wide"):
        load_run("ab12", sqlite_uri, layout="tall")


def test_a_row_for_each_layer_and_step_has_signals_and_statistics(writer, sqlite_uri, tmp_path):
    norm, ratio = Signal("grad_norm", "blocks.0"), Signal("update_ratio", "head")
    readings = [StepReading(10, (LOSS, norm, ratio, RATE), (3.0, 0.5, 1e-3, 0.1), 0, 10.0)]
    write_part(writer, tmp_path, 0, 0, [*readings, StepReading(20, (LOSS, norm), (2.0, 0.25), 0, 20.0)])
    file = tmp_path / part_name(0, 20)
    tables = [table(20, ["blocks.0", "head"], [normal(), normal(3.0)], what) for what in ("gradient", "weight")]
    write_layer_part(file, tables, 0)
    writer.upload(file, LAYER_TABLES_FOLDER)
    frame = load_run(writer.run_id, sqlite_uri, layout="layers")
    assert frame[["step", "layer"]].to_numpy().tolist() == [
        [10, "blocks.0"],
        [10, "head"],
        [20, "blocks.0"],
        [20, "head"],
    ]
    rows = frame.set_index(["step", "layer"])
    assert rows.loc[(10, "blocks.0"), "grad_norm"] == 0.5
    assert rows.loc[(10, "head"), "update_ratio"] == 1e-3
    assert math.isnan(rows.loc[(10, "head"), "weight_std"])
    assert rows.loc[(20, "head"), "weight_std"] == pytest.approx(3.0, rel=0.1)
    assert rows.loc[(20, "blocks.0"), "gradient_zeros"] == 0.0
    assert rows.loc[(20, "blocks.0"), "gradient_abs_max"] >= rows.loc[(20, "blocks.0"), "gradient_max"]


def test_a_run_without_layers_has_no_rows(writer, sqlite_uri, tmp_path):
    write_part(writer, tmp_path, 0, 0, [StepReading(1, (LOSS,), (3.0,), 0, 10.0)])
    assert len(load_run(writer.run_id, sqlite_uri, layout="layers")) == 0
