"""Folds one quantity by layer of a run into a few hundred columns that begin at a step of choice.

In: a run's history, the step that lies at zero, how many steps a column has. Out: a `LayerCourse` for each quantity.
Guarantees: the extreme of a single step is in its column; a value that was not finite is never lost; what is kept does
not grow with the length of the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.curves.curves import restore_infinities
from mlflow_stability.vocabulary.measured import Cells
from mlflow_stability.vocabulary.run import Metric, RunHistory

BY_LAYER = ("grad_norm", "update_ratio", "param_norm", "attention_entropy")
"""What is laid beside each other."""
SMALLEST = frozenset({"attention_entropy"})
"""Of these the smallest value of a column counts: attention collapses to zero."""
MOST_LAYERS = 2048
"""Layers beyond these are left out."""


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Which column a step falls into."""

    zero: int
    """The step that lies at zero."""
    width: int
    """How many steps a column has."""
    begin: int
    """The number of the first column; column 0 begins at zero."""
    columns: int

    def places(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """The places of steps, from 0; outside of the columns -1."""
        found = np.floor_divide(steps - self.zero, self.width) - self.begin
        return np.where((found >= 0) & (found < self.columns), found, -1)


@dataclass(frozen=True, slots=True, eq=False)
class LayerCourse:
    """One quantity of one run."""

    quantity: str
    layers: tuple[str, ...]
    cells: Cells
    left_out: int = 0
    """Layers beyond the most that are kept."""


def layer_courses(
    history: RunHistory, ruler: StepColumns, is_layer: Callable[[str], bool] = bool
) -> Mapping[str, LayerCourse]:
    """For each quantity that the run has by layer its course; `is_layer` says of a place whether it is one."""
    found = {}
    for quantity in BY_LAYER:
        metrics = [
            each
            for each in history.metrics
            if each.meaning.quantity == quantity and is_layer(each.meaning.place) and not each.meaning.duplicate_of
        ]
        if not history.complete or history.format.startswith("mlflow"):  # whose metrics come in the order of letters
            metrics.sort(key=lambda each: _natural(each.meaning.place))
        course = _course(quantity, metrics, ruler)
        if course.layers and not np.isnan(course.cells).all():
            found[quantity] = course
    return found


def _course(quantity: str, metrics: list[Metric], ruler: StepColumns) -> LayerCourse:
    rows: dict[str, int] = {}
    kept = []
    for metric in metrics:
        place = metric.meaning.place
        if place in rows or len(rows) < MOST_LAYERS:
            rows.setdefault(place, len(rows))
            kept.append(metric)
    cells: Cells = np.full((len(rows), ruler.columns), np.nan, np.float32)
    for metric in kept:
        _fold(cells[rows[metric.meaning.place]], metric, ruler, smallest=quantity in SMALLEST)
    return LayerCourse(quantity, tuple(rows), cells, len(metrics) - len(kept))


def _fold(row: NDArray[np.float32], metric: Metric, ruler: StepColumns, *, smallest: bool) -> None:
    places = ruler.places(metric.series.steps)
    values = restore_infinities(metric.series.values)[places >= 0]
    places = places[places >= 0]
    finite = np.isfinite(values)
    with np.errstate(over="ignore"):
        shown = values.astype(np.float32)
    fold = np.fmin if smallest else np.fmax
    fold.at(row, places[finite], shown[finite])
    row[places[~finite]] = np.inf


def _natural(name: str) -> list[tuple[int, str]]:
    """By which names are sorted as people count: layer 2 before layer 10."""
    return [(int(each), "") if each.isdigit() else (-1, each) for each in re.split(r"(\d+)", name)]
