"""What a figure of a run is, and which of them the courier draws into each run.

A module of `of_run` that has `FIGURES` is all that a new figure needs. In: what was kept of a recording. Out: a PNG.
Guarantees: finding the figures loads nothing that draws; a figure loads it when it is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from mlflow_stability.figures.layers.layer_grid import LayerGrid
from mlflow_stability.figures.run_page.dashboard_data import DashboardData
from mlflow_stability.vocabulary.discovery import modules_of
from mlflow_stability.vocabulary.measured import LayerTable

LAST = 1000


class FigureData(Protocol):
    """What is known of one recording."""

    @property
    def subtitle(self) -> str:
        """Which run, which steps, how it stands."""
        ...

    def board(self) -> DashboardData:
        """The curves and marks of the whole model."""
        ...

    def has_layers(self, quantity: str) -> bool:
        """Whether a quantity that a figure asked for was measured by layer."""
        ...

    def grid(self, quantity: str) -> LayerGrid:
        """It by layer and step."""
        ...

    def has_histograms(self, what: str) -> bool:
        """Whether the gradients of layers, or their weights, were measured with histograms."""
        ...

    def tables(self, what: str, most: int) -> Sequence[LayerTable]:
        """At most so many of these tables, spread over the run, the newest last."""
        ...


@dataclass(frozen=True, slots=True)
class RunFigure:
    """One figure."""

    name: str
    """Of its file."""
    draw: Callable[[FigureData], bytes]
    """The PNG; whatever draws is imported within."""
    there: Callable[[FigureData], bool] = lambda _: True
    """Whether there is anything to draw."""
    by_layer: tuple[str, ...] = ()
    """The quantities that are to be kept by layer for it."""
    folder: str = "stability/layers"
    """Among the artifacts of the run."""
    order: int = LAST
    """Which is drawn first."""


@cache
def run_figures() -> tuple[RunFigure, ...]:
    """All of them, in the order in which they are drawn."""
    found = [each for module in modules_of(f"{__package__}.of_run") for each in getattr(module, "FIGURES", ())]
    return tuple(sorted(found, key=lambda each: (each.order, each.name)))
