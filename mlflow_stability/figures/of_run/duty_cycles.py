"""The duty cycles of the bits of sparse codes over the steps, one panel a module."""

from __future__ import annotations

from mlflow_stability.figures.run_figure import FigureData, RunFigure

QUANTITIES = (
    "sdr_duty_p5",
    "sdr_duty_p25",
    "sdr_duty_p50",
    "sdr_duty_p75",
    "sdr_duty_p95",
    "sdr_duty_max",
    "sdr_active_bits",
    "sdr_width",
)


def draw(data: FigureData) -> bytes:
    """Draw a panel for each module."""
    from mlflow_stability.figures.layers.duty_cycles import duty_cycles
    from mlflow_stability.figures.style import png

    return png(duty_cycles([data.grid(quantity) for quantity in QUANTITIES], data.subtitle))


FIGURES = (
    RunFigure(
        "duty_cycles",
        draw,
        lambda data: data.has_layers("sdr_duty_p50"),
        by_layer=QUANTITIES,
        folder="stability/representations",
        order=70,
    ),
)
