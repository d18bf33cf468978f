"""Deliver pictures of a recording, every ten minutes and at the end.

Guarantees: drawing libraries are imported with the first picture; a picture that cannot be drawn is logged once and
skipped, and delays nothing else; one that cannot be sent is sent when the store is back.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.sinks.sink import RunSink, temporary_file
from mlflow_stability.figures.curve import CurveSketch
from mlflow_stability.figures.dashboard_data import MAX_CURVES, QUANTITIES, DashboardData, MarkSketch
from mlflow_stability.figures.layer_grid import LayerGrid, LayerSketch
from mlflow_stability.figures.run_figure import RunFigure, run_figures
from mlflow_stability.journal.array_files import LayerTableFile, layer_table_files, read_layer_table
from mlflow_stability.journal.journal import Record
from mlflow_stability.tracking.artifacts import picture_name
from mlflow_stability.tracking.client import RefusedError
from mlflow_stability.tracking.keys import is_group
from mlflow_stability.tracking.run_writer import RunWriter
from mlflow_stability.vocabulary.measured.layer_arrays import LayerTable
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Closing

BY_LAYER = tuple(dict.fromkeys(quantity for figure in run_figures() for quantity in figure.by_layer))
"""Quantities with a picture by layer."""
_OF_MODULES = ("activation_", "sdr_")  # measured of outputs, with modules in the order in which they are called
_MOST_LAYOUTS = 64


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    layout: tuple[Signal, ...]
    curves: tuple[tuple[int, CurveSketch], ...]
    layers: tuple[tuple[NDArray[np.int64], LayerSketch, NDArray[np.int64]], ...]
    """Indices in the reading, the sketch, and its rows."""


class PictureData:
    """Data of one recording for `RunFigure`: at most 20 MB, whatever its length."""

    def __init__(self, offset: int, run_id: str, folder: Path) -> None:
        self.readings = 0
        self._offset, self._run_id, self._folder = offset, run_id, folder
        self._curves: dict[Signal, CurveSketch] = {}
        self._refused: set[Signal] = set()
        self._layers = {quantity: LayerSketch(quantity) for quantity in BY_LAYER}
        self._marks = MarkSketch()
        self._wanted: dict[int, _Wanted] = {}
        self._first = self._last = 0
        self._outcome = ""

    def take(self, record: Record) -> None:
        if isinstance(record, StepReading):
            step = record.step + self._offset
            self._first = self._first if self.readings else step
            self._last = step
            self.readings += 1
            wanted = self._wanted.get(id(record.signals))
            if wanted is None or wanted.layout is not record.signals:
                wanted = self._learn(record.signals)
            values = record.values
            for place, sketch in wanted.curves:
                sketch.add(step, values[place], record.attempt)
            if wanted.layers:
                numbers = np.asarray(values, np.float64)
                for places, layers, rows in wanted.layers:
                    layers.add(step, rows, numbers[places])
        elif isinstance(record, Finding):
            self._marks.add_event(record, record.step + self._offset)
        elif isinstance(record, Closing):
            self._outcome = record.outcome

    def board(self) -> DashboardData:
        left_out = Counter(signal.quantity for signal in self._refused)
        curves = tuple(sketch.curve() for sketch in self._curves.values())
        return DashboardData("Training health", self.subtitle, curves, self._marks.marks(), left_out)

    def has_layers(self, quantity: str) -> bool:
        return bool(self._layers[quantity].layers)

    def grid(self, quantity: str) -> LayerGrid:
        if quantity.startswith(_OF_MODULES):
            return self._layers[quantity].grid()
        # What is measured in turns names its layers in another order than the model has them.
        others = [sketch for name, sketch in self._layers.items() if not name.startswith(_OF_MODULES)]
        return self._layers[quantity].grid(max(others, key=lambda sketch: len(sketch.layers)).layers)

    @property
    def subtitle(self) -> str:
        steps = f"steps {self._first:,} to {self._last:,}" if self.readings else "no steps yet"
        return f"run {self._run_id} · {steps} · {self._outcome or 'in progress'}"

    def has_histograms(self, what: str) -> bool:
        """Whether gradients or weights were measured with histograms."""
        return bool(self._tables(what))

    def tables(self, what: str, most: int) -> list[LayerTable]:
        """Return at most `most` tables, spread over the run, the newest last."""
        files = self._tables(what)
        chosen = files[-1 :: -max(1, len(files) // most)][:most]  # backwards, the newest always
        return [read_layer_table(file.path) for file in reversed(chosen)]

    def _tables(self, what: str) -> list[LayerTableFile]:
        return [file for file in layer_table_files(self._folder) if file.what == what and file.has_histograms]

    def _learn(self, layout: tuple[Signal, ...]) -> _Wanted:
        """Find what of a layout is wanted, once: names are slow, and a journal repeats the same tuple."""
        curves = []
        for place, signal in enumerate(layout):
            whole = not signal.place or is_group(signal.place) or signal.quantity == "val_loss"
            if signal.quantity in QUANTITIES and whole:
                sketch = self._curve(signal)
                if sketch is not None:
                    curves.append((place, sketch))
        layers = []
        for quantity, grid in self._layers.items():
            places = [
                place
                for place, signal in enumerate(layout)
                if signal.quantity == quantity and signal.place and not is_group(signal.place)
            ]
            if places:
                rows = grid.rows([layout[place].place for place in places])
                layers.append((np.array(places, np.int64), grid, rows))
        if len(self._wanted) >= _MOST_LAYOUTS:
            self._wanted.clear()
        wanted = self._wanted[id(layout)] = _Wanted(layout, tuple(curves), tuple(layers))
        return wanted

    def _curve(self, signal: Signal) -> CurveSketch | None:
        sketch = self._curves.get(signal)
        if sketch is None and signal not in self._refused:
            if sum(other.quantity == signal.quantity for other in self._curves) >= MAX_CURVES:
                self._refused.add(signal)
                return None
            sketch = self._curves[signal] = CurveSketch(signal)
        return sketch


INTERVAL = 600.0
_logger = logging.getLogger("mlflow_stability.courier")


class FigureSink(RunSink):
    words = "pictures"
    interval = INTERVAL

    def __init__(self, delivered: Delivered, writer: RunWriter) -> None:
        super().__init__(delivered, writer)
        self.looked_at = time.monotonic()
        self._data = PictureData(delivered.offset, writer.run_id, delivered.folder)
        self._to_draw: deque[RunFigure] = deque()
        self._drawn: tuple[RunFigure, bytes] | None = None  # a picture that is not sent yet
        self._given_up: set[str] = set()
        self._off = False  # a record could not be taken: nothing is drawn
        self._ending = False

    def take(self, record: Record) -> None:
        if self._off:
            return
        try:
            self._data.take(record)
        except Exception as error:  # must not delay the delivery
            self._off = True
            _log(f"Pictures of recording {self._delivered.recording} not drawn", error)

    def flush(self, over: bool) -> bool:
        """Draw one picture and send it, if it is time. `over`: draw all of them.

        The end of training waits for the last pictures: pass `over` when everything else has arrived.
        """
        more = self.more and not self._off
        if not more and ((over and not self._ending) or self.due(over=False)):
            self._to_draw = deque(self._pictures())
            self._ending = over
            self.looked_at = time.monotonic()
        if not more and self._to_draw and self._drawn is None:
            figure = self._to_draw.popleft()
            try:
                self._drawn = figure, figure.draw(self._data)  # the first one loads matplotlib
            except Exception as error:  # likewise
                self._give_up(figure, error)
        if self._drawn is not None:
            self._send(*self._drawn)
        self._drawn = None
        self.done = self._ending and not self._to_draw
        return bool(self._to_draw)

    def _pictures(self) -> list[RunFigure]:
        if self._off or not self._data.readings:
            return []
        return [figure for figure in run_figures() if figure.name not in self._given_up and figure.there(self._data)]

    def _send(self, figure: RunFigure, content: bytes) -> None:
        try:
            with temporary_file(picture_name(figure.name, self._number), content) as file:
                self._writer.upload(file, figure.folder)
        except (OSError, RefusedError) as error:
            self._give_up(figure, error)

    def _give_up(self, figure: RunFigure, error: Exception) -> None:
        self._given_up.add(figure.name)
        _log(f"Picture {figure.name}.png not drawn", error)


def _log(trouble: str, error: Exception) -> None:
    _logger.warning("%s: %s, %s. Everything else is delivered.", trouble, type(error).__name__, error)
