"""The dashboard of a run: its curves with the findings marked."""

from __future__ import annotations

from mlflow_stability.figures.run_figure import FigureData, RunFigure


def draw(data: FigureData) -> bytes:
    """Draw all curves below each other."""
    from mlflow_stability.figures.run_page.dashboard import dashboard
    from mlflow_stability.figures.style import png

    return png(dashboard(data.board()))


FIGURES = (RunFigure("dashboard", draw, folder="stability", order=0),)
