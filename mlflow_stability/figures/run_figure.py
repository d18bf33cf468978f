"""The figures that the courier draws into each run.

A new figure needs only a module of `of_run` with `FIGURES`. Finding the figures does not load matplotlib; a
figure loads it when it is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from mlflow_stability.figures.dashboard_data import DashboardData
from mlflow_stability.figures.layer_grid import LayerGrid
from mlflow_stability.vocabulary.discovery import modules_of
from mlflow_stability.vocabulary.measured.layer_arrays import LayerTable


class FigureData(Protocol):
    """The newest state of a run: what figures are drawn from."""

    @property
    def subtitle(self) -> str: ...

    def board(self) -> DashboardData: ...

    def has_layers(self, quantity: str) -> bool: ...

    def grid(self, quantity: str) -> LayerGrid: ...

    def has_histograms(self, what: str) -> bool: ...

    def tables(self, what: str, most: int) -> Sequence[LayerTable]:
        """Return at most this many tables of ``gradient`` or ``weight``, spread over the run, the newest last."""
        ...


@dataclass(frozen=True, slots=True)
class RunFigure:
    name: str  # of its file, without the ending
    draw: Callable[[FigureData], bytes]  # returns the PNG; imports matplotlib within
    there: Callable[[FigureData], bool] = lambda _: True  # whether there is anything to draw
    by_layer: tuple[str, ...] = ()  # the quantities to keep by layer for it
    folder: str = "stability/layers"  # its folder among the artifacts of the run
    order: int = 1000  # lower ones are drawn first


@cache
def run_figures() -> tuple[RunFigure, ...]:
    figures = [figure for module in modules_of(f"{__package__}.of_run") for figure in getattr(module, "FIGURES", ())]
    return tuple(sorted(figures, key=lambda figure: (figure.order, figure.name)))
