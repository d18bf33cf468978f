"""Draws one quantity by layer of two runs beside each other.

In: a `LayersBeside` and what to call the runs. Out: a figure with the same rows, the same columns and one scale of
colours for both. Promised: what is not finite, zero, or not measured is told apart from every value.
"""

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

from mlflow_stability.figures.layer_label import labels_of
from mlflow_stability.figures.scale import number_text
from mlflow_stability.figures.style import BAD, FAINT, SMALL_SIZE, WIDTH, Picture, entitle, new_figure, our_style, shown
from mlflow_stability.vocabulary.layers_beside import Cells, LayersBeside

_COLOURS = "viridis"
_SPECIAL = {"not finite": BAD, "zero": "#000000", "not measured": "#e6e6e6"}
_TITLES = {
    "grad_norm": "Gradient norm by layer",
    "update_ratio": "Update ratio by layer",
    "param_norm": "Parameter norm by layer",
    "attention_entropy": "Attention entropy by head",
}
_ROW, _THIN_ROW, _FEW = 0.3, 0.17, 24
_LEAST_HEIGHT, _MOST_HEIGHT = 0.9, 8.0
_LABEL_HEIGHT, _LETTER, _LONGEST = 0.17, 0.078, 26
_TOP, _BOTTOM, _RIGHT, _BETWEEN = 1.1, 0.95, 0.95, 0.25


def layers_beside(beside: LayersBeside, names: tuple[str, str]) -> Picture:
    """The picture of a quantity of two runs."""
    with our_style():
        return _drawn(beside, names)


def _drawn(beside: LayersBeside, names: tuple[str, str]) -> Picture:
    count = len(beside.layers)
    tall = min(_MOST_HEIGHT, max(_LEAST_HEIGHT, count * (_ROW if count <= _FEW else _THIN_ROW)))
    common, labels = labels_of(beside.layers, max(1, int(tall / _LABEL_HEIGHT)))
    rows = [shown(each.name, _LONGEST) for each in labels]
    left = 0.35 + _LETTER * max(map(len, rows), default=0)
    total = _TOP + tall + _BOTTOM
    figure = new_figure(total)
    extreme = "smallest" if beside.smallest else "largest"
    said = [f"all in {shown(common.rstrip('.'), 40)}"] if common else []
    said += [f"each column the {extreme} of {beside.width:,} steps"] if beside.width > 1 else []
    entitle(figure, _TITLES.get(beside.quantity, beside.quantity), " · ".join(said))
    low, high = beside.colour_limits
    norm = LogNorm(low, high) if beside.logarithmic else Normalize(low, high)
    wide = (WIDTH - left - _RIGHT - _BETWEEN) / 2
    for number, (name, cells) in enumerate(zip(names, (beside.first, beside.second), strict=True)):
        begin = left + number * (wide + _BETWEEN)
        axes = figure.add_axes((begin / WIDTH, _BOTTOM / total, wide / WIDTH, tall / total))
        _draw_run(axes, beside, cells, norm, name)
        axes.set_yticks([each.middle for each in labels], rows if number == 0 else [""] * len(rows))
        axes.tick_params(axis="y", length=2 if number == 0 else 0)
    box = axes.get_position()
    bar = Colorbar(figure.add_axes((box.x1 + 0.014, box.y0, 0.014, box.height)), ScalarMappable(norm, _COLOURS))
    if beside.logarithmic:
        decades = high / low >= 100
        bar.ax.yaxis.set_major_locator(LogLocator(subs=(1.0,) if decades else (1.0, 2.0, 5.0), numticks=8))
        bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    bar.outline.set_visible(False)
    _legend(axes, beside, tall)
    return figure


def _draw_run(axes: Axes, beside: LayersBeside, cells: Cells, norm: Normalize, name: str) -> None:
    extent = (beside.begin, beside.begin + beside.columns * beside.width, len(beside.layers) - 0.5, -0.5)
    axes.imshow(_colours(beside, cells, norm), extent=extent, aspect="auto", interpolation="nearest")
    axes.set_title(shown(name, 44), loc="left", fontsize=SMALL_SIZE)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_xlabel("steps from the onset" if beside.aligned else "step")
    if beside.aligned and extent[0] <= 0 <= extent[1]:
        axes.axvline(0, color="#ffffff", linewidth=1.6)
        axes.axvline(0, color="#000000", linewidth=1.0, linestyle=(0, (4, 3)))


def _colours(beside: LayersBeside, cells: Cells, norm: Normalize) -> NDArray[np.float64]:
    known = np.where(np.isfinite(cells), cells, np.nan).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        picture = np.array(matplotlib.colormaps[_COLOURS](norm(known))[..., :3], np.float64)
    for name, where in _places(beside, cells).items():
        picture[where] = to_rgb(_SPECIAL[name])
    return picture


def _places(beside: LayersBeside, cells: Cells) -> dict[str, NDArray[np.bool_]]:
    """Where there is no value to give a colour."""
    zero = (cells == 0) & (not beside.smallest)
    return {"not finite": np.isinf(cells), "zero": zero, "not measured": np.isnan(cells)}


def _legend(axes: Axes, beside: LayersBeside, tall: float) -> None:
    """What the colours outside of the bar say, beneath the steps."""
    both = [_places(beside, cells) for cells in (beside.first, beside.second)]
    seen = [name for name in _SPECIAL if any(each[name].any() for each in both)]
    if seen:
        axes.legend(
            [Patch(facecolor=_SPECIAL[name]) for name in seen],
            seen,
            loc="upper right",
            bbox_to_anchor=(1.0, -0.52 / tall),
            ncols=3,
            fontsize=SMALL_SIZE,
            frameon=False,
            labelcolor=FAINT,
            borderaxespad=0.0,
        )
