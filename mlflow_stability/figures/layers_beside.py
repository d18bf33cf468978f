"""Draw one quantity by layer of two runs beside each other, with one scale of colours."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LogNorm, Normalize, to_rgb
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from mlflow_stability.figures.layer_grid import labels_of
from mlflow_stability.figures.style import (
    BAD,
    GRID,
    SMALL_SIZE,
    WIDTH,
    Picture,
    add_legend,
    entitle,
    new_figure,
    number_text,
    our_style,
    shown,
)
from mlflow_stability.vocabulary.measured.layer_comparison import OUTSIDE, LayerComparison

_COLOURS = "viridis"
_SPECIAL = {
    "not finite": BAD,
    "zero": "#000000",
    "absent layer": "#f2e3c9",
    "absent head": "#f2e3c9",
    "not measured": "#d9d9d9",
    OUTSIDE: "#ffffff",
}
_ROW, _THIN_ROW, _MAX_HIGH_ROWS = 0.3, 0.17, 24
_MIN_HEIGHT, _MAX_HEIGHT = 0.9, 8.0
_LABEL_HEIGHT, _LETTER, _MAX_NAME = 0.17, 0.078, 26
_TOP, _BOTTOM, _RIGHT, _BETWEEN = 1.1, 0.95, 1.2, 0.25


@our_style()
def layers_beside(beside: LayerComparison, names: tuple[str, str]) -> Picture:
    """Draw both runs with the same rows and columns; what has no value has a colour of its own."""
    count = len(beside.layers)
    tall = min(_MAX_HEIGHT, max(_MIN_HEIGHT, count * (_ROW if count <= _MAX_HIGH_ROWS else _THIN_ROW)))
    common, labels = labels_of(beside.layers, max(1, int(tall / _LABEL_HEIGHT)))
    rows = [shown(label.name, _MAX_NAME) for label in labels]
    left = 0.35 + _LETTER * max(map(len, rows), default=0)
    total = _TOP + tall + _BOTTOM
    figure = new_figure(total)
    extreme = "smallest" if beside.smallest else "largest"
    facts = [f"all in {shown(common.rstrip('.'), 40)}"] if common else []
    facts += [f"each column the {extreme} of {beside.width:,} steps"] if beside.width > 1 else []
    entitle(figure, beside.title, " · ".join(facts))
    low, high = beside.colour_limits
    norm = LogNorm(low, high) if beside.logarithmic else Normalize(low, high)
    wide = (WIDTH - left - _RIGHT - _BETWEEN) / 2
    for number, name in enumerate(names):
        begin = left + number * (wide + _BETWEEN)
        axes = figure.add_axes((begin / WIDTH, _BOTTOM / total, wide / WIDTH, tall / total))
        _draw_run(axes, beside, number, norm, name)
        axes.set_yticks([label.middle for label in labels], rows if number == 0 else [""] * len(rows))
        axes.tick_params(axis="y", length=2 if number == 0 else 0)
    box = axes.get_position()
    bar = Colorbar(figure.add_axes((box.x1 + 0.014, box.y0, 0.014, box.height)), ScalarMappable(norm, _COLOURS))
    if beside.logarithmic:
        decades = high / low >= 100
        bar.ax.yaxis.set_major_locator(LogLocator(subs=(1.0,) if decades else (1.0, 2.0, 5.0), numticks=8))
        bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    bar.outline.set_visible(False)
    bar.set_label(beside.measure, fontsize=SMALL_SIZE)
    _legend(axes, beside, tall)
    return figure


def _draw_run(axes: Axes, beside: LayerComparison, number: int, norm: Normalize, name: str) -> None:
    extent = (beside.begin, beside.begin + beside.columns * beside.width, len(beside.layers) - 0.5, -0.5)
    axes.imshow(_colours(beside, number, norm), extent=extent, aspect="auto", interpolation="nearest")
    axes.set_title(shown(name, 44), loc="left", fontsize=SMALL_SIZE)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel(f"steps from {beside.onset_in_words[number]}" if beside.aligned else "step")
    axes.set_xlim(
        max(extent[0], min(low for low, _ in beside.spans)), min(extent[1], max(high for _, high in beside.spans) + 1)
    )
    if beside.aligned and extent[0] <= 0 <= extent[1]:
        axes.axvline(0, color="#ffffff", linewidth=1.6)
        axes.axvline(0, color="#000000", linewidth=1.0, linestyle=(0, (4, 3)))


def _colours(beside: LayerComparison, number: int, norm: Normalize) -> NDArray[np.float64]:
    cells = (beside.first, beside.second)[number]
    finite = np.where(np.isfinite(cells), cells, np.nan).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        picture = np.array(matplotlib.colormaps[_COLOURS](norm(finite))[..., :3], np.float64)
    for name, where in beside.without_colour(number).items():
        picture[where] = to_rgb(_SPECIAL[name])
    return picture


def _legend(axes: Axes, beside: LayerComparison, tall: float) -> None:
    """Name the colours outside of the bar, beneath the steps."""
    both = [beside.without_colour(number) for number in (0, 1)]
    patches = {
        name: Patch(facecolor=colour, edgecolor=GRID)
        for name, colour in _SPECIAL.items()
        if any(cells[name].any() for cells in both if name in cells)
    }
    if patches:
        add_legend(axes, patches, loc="upper right", bbox_to_anchor=(1.0, -0.52 / tall), ncols=5)
