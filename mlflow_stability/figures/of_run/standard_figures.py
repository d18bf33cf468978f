"""The dashboard, heat maps by layer, histograms, and duty cycles of sparse codes."""

from __future__ import annotations

from mlflow_stability.figures.run_figure import FigureData, RunFigure

MAX_TABLES = 10  # measurements of histograms that are drawn
DUTY_CYCLES = (
    "sdr_duty_p5",
    "sdr_duty_p25",
    "sdr_duty_p50",
    "sdr_duty_p75",
    "sdr_duty_p95",
    "sdr_duty_max",
    "sdr_active_bits",
    "sdr_width",
)


def draw_dashboard(data: FigureData) -> bytes:
    from mlflow_stability.figures.dashboard import dashboard
    from mlflow_stability.figures.style import png

    return png(dashboard(data.board()))


def draw_duty_cycles(data: FigureData) -> bytes:
    from mlflow_stability.figures.duty_cycles import duty_cycles
    from mlflow_stability.figures.style import png

    return png(duty_cycles([data.grid(quantity) for quantity in DUTY_CYCLES], data.subtitle))


def heatmap(quantity: str, order: int) -> RunFigure:
    def draw(data: FigureData) -> bytes:
        from mlflow_stability.figures.layer_heatmap import layer_heatmap
        from mlflow_stability.figures.style import png

        return png(layer_heatmap(data.grid(quantity), data.subtitle))

    return RunFigure(quantity, draw, lambda data: data.has_layers(quantity), by_layer=(quantity,), order=order)


def histograms(what: str, order: int) -> RunFigure:
    def draw(data: FigureData) -> bytes:
        from mlflow_stability.figures.histogram_ridge import histogram_ridges
        from mlflow_stability.figures.style import png

        return png(histogram_ridges(data.tables(what, MAX_TABLES), data.subtitle))

    return RunFigure(f"{what}_histogram", draw, lambda data: data.has_histograms(what), order=order)


FIGURES = (
    RunFigure("dashboard", draw_dashboard, folder="stability", order=0),
    heatmap("grad_norm", 10),
    heatmap("update_ratio", 20),
    heatmap("param_norm", 30),
    heatmap("router_share", 35),
    histograms("gradient", 40),
    histograms("weight", 45),
    heatmap("activation_rms", 50),
    heatmap("activation_dead", 60),
    RunFigure(
        "duty_cycles",
        draw_duty_cycles,
        lambda data: data.has_layers("sdr_duty_p50"),
        by_layer=DUTY_CYCLES,
        folder="stability/representations",
        order=70,
    ),
)
