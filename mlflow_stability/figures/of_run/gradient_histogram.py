"""The histograms of the gradients of layers, one ridge a measurement."""

from __future__ import annotations

from mlflow_stability.figures.run_figure import FigureData, RunFigure

MOST_TABLES = 10
"""How many measurements are drawn."""


def draw(data: FigureData) -> bytes:
    """Draw the ridges."""
    from mlflow_stability.figures.layers.histogram_ridge import histogram_ridges
    from mlflow_stability.figures.style import png

    return png(histogram_ridges(data.gradient_tables(MOST_TABLES), data.subtitle))


FIGURES = (RunFigure("gradient_histogram", draw, lambda data: data.has_histograms(), order=40),)
