"""The histograms of the gradients of layers, and of their weights: one ridge a layer, and one a measurement."""

from __future__ import annotations

from mlflow_stability.figures.run_figure import FigureData, RunFigure

MOST_TABLES = 10
"""How many measurements are drawn."""


def histograms(what: str, order: int) -> RunFigure:
    """The histograms of ``gradient`` or ``weight``."""

    def draw(data: FigureData) -> bytes:
        from mlflow_stability.figures.layers.histogram_ridge import histogram_ridges
        from mlflow_stability.figures.style import png

        return png(histogram_ridges(data.tables(what, MOST_TABLES), data.subtitle))

    return RunFigure(f"{what}_histogram", draw, lambda data: data.has_histograms(what), order=order)


FIGURES = (histograms("gradient", 40), histograms("weight", 45))
