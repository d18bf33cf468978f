"""Pictures of a recording arrive in its run, and nothing waits for one that does not."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from courier.staging import Fed, Training
from figures.layers import gpt_layers, normal, table
from mlflow import MlflowClient

from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.sinks import figure_sink
from mlflow_stability.courier.sinks.figure_sink import FigureSink, PictureData
from mlflow_stability.errors import TrackingError
from mlflow_stability.figures.of_run.standard_figures import DUTY_CYCLES
from mlflow_stability.figures.run_figure import RunFigure, run_figures
from mlflow_stability.journal.array_files import write_layer_table
from mlflow_stability.kinds.reported.rollback import RollbackFacts
from mlflow_stability.tracking.client import RefusedError
from mlflow_stability.tracking.run_writer import RunWriter
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import Closing

WHOLE = (Signal("loss"), Signal("grad_norm"), Signal("learning_rate"), Signal("learning_rate", "group_1"))
ALL = ["dashboard.png", "grad_norm.png", "update_ratio.png", "param_norm.png", "gradient_histogram.png"]


class Shelf:
    """The border of tracking: keeps what it is sent, while it takes anything."""

    run_id = "3f2a9c"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.sent: list[str] = []
        self.trouble: Exception | None = None

    def upload(self, file: Path, folder: str) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.files[f"{folder}/{file.name}"] = file.read_bytes()
        self.sent.append(file.name)


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    training = Training(tmp_path / ".mlflow-stability", "sqlite:///never-opened.db")
    yield training
    training.end()


def journal(training: Training, steps: int, layers: int = 0, every: int = 10) -> None:
    by_layer = tuple(
        Signal(quantity, layer)
        for quantity in ("grad_norm", "param_norm", "update_ratio")
        for layer in gpt_layers(layers)
    )
    for step in range(1, steps + 1):
        with_layers = layers > 0 and step % every == 0
        signals = WHOLE + by_layer if with_layers else WHOLE
        values = (2.0 + step % 7, 1.0, 1e-3, 1e-4) + (0.5,) * (len(signals) - len(WHOLE))
        training.journal.append(StepReading(step, signals, values, 0, float(step)))
    if layers:
        for step in (1000, 2000):
            write_layer_table(training.journal.folder, table(step, gpt_layers(layers), [normal()]))


def fed(training: Training, shelf: Any, **delivered: Any) -> Fed:
    return Fed(training.journal, FigureSink(Delivered(training.journal.folder, **delivered), shelf))


@pytest.mark.slow
def test_every_picture_is_drawn_at_the_end(training: Training) -> None:
    journal(training, 50, layers=12)
    shelf = Shelf()
    fed(training, shelf).drive()
    assert shelf.sent == ALL
    assert list(shelf.files) == ["stability/dashboard.png", *(f"stability/layers/{name}" for name in ALL[1:])]
    assert all(content.startswith(b"\x89PNG") for content in shelf.files.values())


def test_only_pictures_with_data_are_drawn(training: Training) -> None:
    journal(training, 5)
    shelf = Shelf()
    fed(training, shelf).drive()
    assert shelf.sent == ["dashboard.png"]


@pytest.mark.slow
def test_weights_activations_and_sparse_codes_have_their_pictures(training: Training) -> None:
    of_modules = tuple(Signal(name, place) for name in ("activation_rms", "activation_dead") for place in "ab")
    of_codes = tuple(Signal(cycle, "encoder") for cycle in DUTY_CYCLES)
    for step in range(1, 4):
        values = (2.0, 1.0, 1e-3, 1e-4) + (0.5,) * (len(of_modules) + len(of_codes))
        training.journal.append(StepReading(step, WHOLE + of_modules + of_codes, values, 0, float(step)))
    write_layer_table(training.journal.folder, table(3, gpt_layers(4), [normal()], "weight"))
    shelf = Shelf()
    fed(training, shelf).drive()
    assert shelf.sent[1:] == ["weight_histogram.png", "activation_rms.png", "activation_dead.png", "duty_cycles.png"]
    assert "stability/representations/duty_cycles.png" in shelf.files


def test_no_picture_is_sent_for_a_recording_without_steps(training: Training) -> None:
    shelf = Shelf()
    fed(training, shelf).drive()
    assert shelf.sent == []


def test_pictures_come_in_the_middle_of_a_training_too(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    journal(training, 5)
    shelf = Shelf()
    figures = fed(training, shelf)
    while figures.advance(over=False):
        pass
    assert shelf.sent == []
    later = time.monotonic() + figure_sink.INTERVAL
    monkeypatch.setattr(time, "monotonic", lambda: later)
    for _ in range(5):
        figures.advance(over=False)
    assert shelf.sent == ["dashboard.png"]
    figures.drive()
    assert shelf.sent == ["dashboard.png", "dashboard.png"]


def test_the_second_recording_of_a_run_does_not_replace_the_pictures_of_the_first(training: Training) -> None:
    journal(training, 5)
    shelf = Shelf()
    fed(training, shelf, number=1).drive()
    assert shelf.sent == ["dashboard-2.png"]


def test_a_picture_that_cannot_be_drawn_is_reported_once_and_the_others_are_drawn(
    training: Training, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a mistake of ours")

    journal(training, 50, layers=2)
    monkeypatch.setattr("mlflow_stability.figures.layer_heatmap.layer_heatmap", broken)
    shelf = Shelf()
    with caplog.at_level(logging.WARNING):
        fed(training, shelf).drive()
    assert shelf.sent == ["dashboard.png", "gradient_histogram.png"]
    assert sum("Picture grad_norm.png not drawn: ZeroDivisionError" in line for line in caplog.messages) == 1


def test_an_error_while_reading_the_journal_prevents_only_the_pictures_and_gives_one_warning(
    training: Training, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal(training, 5)
    monkeypatch.setattr(PictureData, "take", lambda *_: 1 / 0)
    shelf = Shelf()
    figures = fed(training, shelf)
    with caplog.at_level(logging.WARNING):
        figures.drive()
    assert shelf.sent == []
    assert len(caplog.messages) == 1


def test_a_picture_is_not_drawn_again_after_a_store_outage(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    journal(training, 5)
    shelf, drawn = Shelf(), []
    shelf.trouble = TrackingError("away")
    figures = fed(training, shelf)

    def counted(figure: RunFigure) -> RunFigure:
        return replace(figure, draw=lambda data: drawn.append(figure.name) or figure.draw(data))

    counted_figures = [counted(figure) for figure in run_figures()]
    monkeypatch.setattr(figure_sink, "run_figures", lambda: counted_figures)
    for _ in range(3):
        with pytest.raises(TrackingError):
            figures.advance(over=True)
    assert not figures.sinks[0].done
    shelf.trouble = None
    figures.drive()
    assert drawn == ["dashboard"]
    assert shelf.sent == ["dashboard.png"]


def test_a_store_that_refuses_a_picture_is_not_asked_again(training: Training) -> None:
    journal(training, 5)
    shelf = Shelf()
    shelf.trouble = RefusedError("no pictures here")
    fed(training, shelf).drive()
    assert shelf.sent == []


@pytest.mark.slow
def test_a_damaged_table_prevents_only_its_own_picture(training: Training) -> None:
    journal(training, 50, layers=2)
    for file in (training.journal.folder / "layers").iterdir():
        file.write_bytes(b"torn")
    shelf = Shelf()
    fed(training, shelf).drive()
    assert shelf.sent == ALL[:-1]


@pytest.mark.slow
def test_pictures_arrive_in_a_real_run(training: Training, sqlite_uri: str) -> None:
    journal(training, 50, layers=2)
    client = MlflowClient(tracking_uri=sqlite_uri)
    run_id = str(client.create_run("0").info.run_id)
    fed(training, RunWriter(client, run_id)).drive()
    assert "stability/dashboard.png" in [artifact.path for artifact in client.list_artifacts(run_id, "stability")]
    assert len(client.list_artifacts(run_id, "stability/layers")) == 4


@pytest.mark.slow
def test_the_data_for_pictures_stay_below_20_megabytes_with_a_thousand_layers() -> None:
    data = PictureData(0, "3f2a9c", Path())
    layers = gpt_layers(1000)
    groups = tuple(Signal("learning_rate", f"group_{number}") for number in range(1, 40))
    measured = tuple(Signal(quantity, layer) for quantity in figure_sink.BY_LAYER for layer in layers)
    often = (*WHOLE[:3], Signal("val_loss"), Signal("update_ratio"), Signal("grad_norm_clipped"), *groups)
    rarely = often + measured
    few, many = (1.0,) * len(often), (1.0,) * len(rarely)
    data.take(StepReading(1, rarely, many, 0, 0.0))
    before = psutil.Process().memory_info().rss
    for step in range(2, 30_001):
        with_layers = step % 60 == 0
        data.take(StepReading(step, rarely if with_layers else often, many if with_layers else few, 0, 0.0))
    assert psutil.Process().memory_info().rss - before < 20e6
    board = data.board()
    assert board.left_out == {"learning_rate": 36 + 1 - 2}
    assert len(data.grid("param_norm").layers) == 1000


def test_steps_and_events_are_shown_as_the_run_counts_them() -> None:
    data = PictureData(1000, "3f2a9c", Path())
    data.take(StepReading(1, WHOLE, (1.0, math.nan, 1e-3, 1e-4), 0, 0.0))
    data.take(Finding.at(RollbackFacts("back", 1, 2, 1, 0.1, 1), 2, Severity.INFO))
    data.take(StepReading(3, WHOLE, (1.0, 2.0, 1e-3, 1e-4), 1, 0.0))
    data.take(Closing("finished"))
    board = data.board()
    assert board.subtitle == "run 3f2a9c · steps 1,001 to 1,003 · finished"
    (norm,) = board.of("grad_norm")
    assert (norm.steps.tolist(), norm.nonfinite.tolist(), norm.attempts.tolist()) == ([1001, 1003], [1, 0], [0, 1])
    assert (board.marks[0].start, board.marks[0].target) == (1002, 1001)


def test_layers_measured_in_turns_come_in_the_order_of_the_model() -> None:
    data, layers = PictureData(0, "3f2a9c", Path()), gpt_layers(6)
    turned = tuple(Signal("update_ratio", layer) for layer in layers[::-2])
    data.take(StepReading(1, turned, (1.0,) * 3, 0, 0.0))
    data.take(StepReading(2, tuple(Signal("param_norm", layer) for layer in layers), (1.0,) * 6, 0, 0.0))
    assert list(data.grid("update_ratio").layers) == [layer for layer in layers if layer in layers[::-2]]
    assert np.isfinite(data.grid("param_norm").values).all()
