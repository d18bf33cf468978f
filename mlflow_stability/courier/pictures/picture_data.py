"""Keeps of a recording what its pictures are drawn from.

In: the records of a journal, in order, with steps as the run counts them. Out: a `DashboardData` and grids of layers.
Guarantees: at most 20 MB for a recording of any length and a thousand layers; nothing here loads what draws.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.figures.layers import LayerGrid, LayerSketch
from mlflow_stability.figures.run_figure import run_figures
from mlflow_stability.figures.run_page import MOST_CURVES, QUANTITIES, CurveSketch, DashboardData, MarkSketch
from mlflow_stability.journal.record import Record
from mlflow_stability.tracking.keys import is_group
from mlflow_stability.vocabulary.measured import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Closing

BY_LAYER = tuple(dict.fromkeys(quantity for each in run_figures() for quantity in each.by_layer))
"""The quantities that have a picture by layer."""
_OF_MODULES = ("activation_", "sdr_")
"""What is measured of outputs has the modules in the order in which they are called."""
_MOST_LAYOUTS = 64


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """What of one layout goes where."""

    layout: tuple[Signal, ...]
    curves: tuple[tuple[int, CurveSketch], ...]
    layers: tuple[tuple[NDArray[np.int64], LayerSketch, NDArray[np.int64]], ...]
    """Places in the reading, the sketch, and its rows."""


class PictureData:
    """What is known of one recording."""

    def __init__(self, offset: int) -> None:
        self.readings = 0
        """How many steps were heard."""
        self._offset = offset
        self._curves: dict[Signal, CurveSketch] = {}
        self._refused: set[Signal] = set()
        self._layers = {quantity: LayerSketch(quantity) for quantity in BY_LAYER}
        self._marks = MarkSketch()
        self._wanted: dict[int, _Wanted] = {}
        self._first = self._last = 0
        self._outcome = ""

    def take(self, record: Record) -> None:
        """Take a record in."""
        if isinstance(record, StepReading):
            self._take_step(record)
        elif isinstance(record, Finding):
            self._marks.hear(record, record.step + self._offset)
        elif isinstance(record, Closing):
            self._outcome = record.outcome

    def board(self, run_id: str) -> DashboardData:
        """What the dashboard is drawn from."""
        left_out = Counter(signal.quantity for signal in self._refused)
        curves = tuple(sketch.curve() for sketch in self._curves.values())
        return DashboardData("Training health", self.subtitle(run_id), curves, self._marks.marks(), left_out)

    def has_layers(self, quantity: str) -> bool:
        """Whether a quantity was measured by layer."""
        return bool(self._layers[quantity].layers)

    def grid(self, quantity: str) -> LayerGrid:
        """A quantity by layer."""
        if quantity.startswith(_OF_MODULES):
            return self._layers[quantity].grid()
        # What is measured in turns names its layers in another order than the model has them.
        others = [each for name, each in self._layers.items() if not name.startswith(_OF_MODULES)]
        return self._layers[quantity].grid(max(others, key=lambda each: len(each.layers)).layers)

    def subtitle(self, run_id: str) -> str:
        """Which run, which steps, how it stands."""
        steps = f"steps {self._first:,} to {self._last:,}" if self.readings else "no steps yet"
        return f"run {run_id} · {steps} · {self._outcome or 'in progress'}"

    def _take_step(self, reading: StepReading) -> None:
        step = reading.step + self._offset
        self._first = self._first if self.readings else step
        self._last = step
        self.readings += 1
        wanted = self._wanted.get(id(reading.signals))
        if wanted is None or wanted.layout is not reading.signals:
            wanted = self._learn(reading.signals)
        values = reading.values
        for place, sketch in wanted.curves:
            sketch.add(step, values[place], reading.attempt)
        if wanted.layers:
            numbers = np.asarray(values, np.float64)
            for places, layers, rows in wanted.layers:
                layers.add(step, rows, numbers[places])

    def _learn(self, layout: tuple[Signal, ...]) -> _Wanted:
        """Find out once what of a layout is wanted: names are slow, and a journal gives the same tuple again."""
        curves = []
        for place, signal in enumerate(layout):
            whole = not signal.place or is_group(signal.place) or signal.quantity == "val_loss"
            if signal.quantity in QUANTITIES and whole:
                sketch = self._curve(signal)
                if sketch is not None:
                    curves.append((place, sketch))
        layers = []
        for quantity, grid in self._layers.items():
            found = [
                place
                for place, signal in enumerate(layout)
                if signal.quantity == quantity and signal.place and not is_group(signal.place)
            ]
            if found:
                rows = grid.rows([layout[place].place for place in found])
                layers.append((np.array(found, np.int64), grid, rows))
        if len(self._wanted) >= _MOST_LAYOUTS:
            self._wanted.clear()
        wanted = self._wanted[id(layout)] = _Wanted(layout, tuple(curves), tuple(layers))
        return wanted

    def _curve(self, signal: Signal) -> CurveSketch | None:
        known = self._curves.get(signal)
        if known is None and signal not in self._refused:
            if sum(each.quantity == signal.quantity for each in self._curves) >= MOST_CURVES:
                self._refused.add(signal)
                return None
            known = self._curves[signal] = CurveSketch(signal)
        return known
