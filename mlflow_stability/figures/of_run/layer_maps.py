"""Heat maps of what is measured by layer, over the steps."""

from __future__ import annotations

from mlflow_stability.figures.run_figure import FigureData, RunFigure


def heatmap(quantity: str, order: int) -> RunFigure:
    """The heat map of one quantity."""

    def draw(data: FigureData) -> bytes:
        from mlflow_stability.figures.layers.layer_heatmap import layer_heatmap
        from mlflow_stability.figures.style import png

        return png(layer_heatmap(data.grid(quantity), data.subtitle))

    return RunFigure(quantity, draw, lambda data: data.has_layers(quantity), by_layer=(quantity,), order=order)


FIGURES = (
    heatmap("grad_norm", 10),
    heatmap("update_ratio", 20),
    heatmap("param_norm", 30),
    heatmap("router_share", 35),
    heatmap("activation_rms", 50),
    heatmap("activation_dead", 60),
)
