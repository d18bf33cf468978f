"""Draws one quantity by layer and step, as colours.

In: a `LayerGrid`. Out: a figure with the input of the model at the top and its output at the bottom. Guarantees: two to
a thousand layers and more are readable; what is not finite, zero, or not measured is told apart from every value.
"""

from __future__ import annotations

import math
from typing import Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LogNorm, to_rgb
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray

from mlflow_stability.figures.layers.layer_grid import LayerGrid, evened
from mlflow_stability.figures.layers.layer_label import labels_of
from mlflow_stability.figures.scale import number_text, step_axis
from mlflow_stability.figures.style import (
    BAD,
    DPI,
    FAINT,
    SMALL_SIZE,
    WIDTH,
    Picture,
    entitle,
    new_figure,
    our_style,
    say_instead,
    shown,
)

_COLOURS = "viridis"
_NOT_FINITE, _STRIPE, _ZERO, _NOT_MEASURED = BAD, "#ffd9c2", "#000000", "#e6e6e6"
_ROW, _THIN_ROW = 0.3, 0.17
_LEAST_HEIGHT, _MOST_HEIGHT = 0.9, 8.0
_LABEL_HEIGHT = 0.17
_LETTER = 0.078
"""Inches that a letter of a label takes."""
_LONGEST = 34
_TOP, _BOTTOM, _RIGHT = 0.80, 0.9, 1.15
_INNER = (1.0, 99.0)
"""Percentiles at which colours end, so that one exploding layer does not make all others look alike."""
_SPREAD = 0.5
"""The least that the colours span, in powers of ten."""
_TITLES = {
    "grad_norm": "Gradient norm",
    "update_ratio": "Update ratio",
    "param_norm": "Parameter norm",
    "activation_rms": "Activation RMS",
    "router_share": "Share of tokens",
    "activation_dead": "Share of dead units",
}
_OF_EXPERTS = frozenset({"router_share"})

Pixels = NDArray[np.uint8]


def layer_heatmap(grid: LayerGrid, subtitle: str = "") -> Picture:
    """The picture of a quantity by layer."""
    with our_style():
        return _layer_heatmap(evened(grid), subtitle)


def _layer_heatmap(grid: LayerGrid, subtitle: str) -> Picture:
    count = len(grid.layers)
    tall = min(_MOST_HEIGHT, max(_LEAST_HEIGHT, count * (_ROW if count <= 24 else _THIN_ROW)))
    common, labels = labels_of(grid.layers, max(1, int(tall / _LABEL_HEIGHT)))
    names = [shown(each.name, _LONGEST) for each in labels]
    left = 0.35 + _LETTER * max(map(len, names), default=0)
    total = _TOP + tall + _BOTTOM
    figure = new_figure(total)
    rows = "expert" if grid.quantity in _OF_EXPERTS else "layer"
    where = f"{count} {rows}{'s' if count != 1 else ''}" + (f" of {shown(common.rstrip('.'), 40)}" if common else "")
    title = f"{_TITLES.get(grid.quantity, grid.quantity)} by {rows}"
    entitle(figure, title, " · ".join(filter(None, [where, _columns_in_words(grid), _left_out(grid)])), subtitle)
    place = (left / WIDTH, _BOTTOM / total, (WIDTH - left - _RIGHT) / WIDTH, tall / total)
    axes = figure.add_axes(place)
    if not np.size(grid.values) or np.isnan(grid.values).all():
        axes.set_axis_off()
        say_instead(axes, "not measured")
        return figure
    norm = _norm(grid.values)
    first, last = int(grid.steps[0]), max(grid.last, int(grid.steps[-1]))
    step_axis(axes, first, last, labels=True)
    limits = axes.get_xlim()
    pixels = (round(place[2] * WIDTH * DPI), round(tall * DPI))
    picture, seen = _painted(grid, norm, limits, pixels)
    axes.imshow(picture, extent=(*limits, count - 0.5, -0.5), aspect="auto", interpolation="nearest", zorder=1)
    axes.set_yticks([each.middle for each in labels], names)
    axes.tick_params(axis="y", length=2)
    _colour_bar(figure, axes, norm, grid)
    _legend(axes, seen, tall)
    return figure


def _norm(values: NDArray[np.float32]) -> LogNorm:
    there = values[np.isfinite(values) & (values > 0)].astype(np.float64)
    if not len(there):
        return LogNorm(0.1, 10.0)
    low, high = np.percentile(np.log10(there), _INNER).tolist()
    if high - low < _SPREAD:
        low, high = (low + high - _SPREAD) / 2, (low + high + _SPREAD) / 2
    return LogNorm(10.0 ** max(low, -300.0), 10.0 ** min(high, 300.0))


def _painted(
    grid: LayerGrid, norm: LogNorm, limits: tuple[float, float], pixels: tuple[int, int]
) -> tuple[Pixels, set[str]]:
    """The colours of all pixels, and which special ones are among them."""
    wide, high = pixels
    column = _column_of_pixels(grid, limits, wide)
    row = np.arange(high) * len(grid.layers) // high
    cells = np.full((len(grid.layers), len(grid.steps) + 1), np.nan, np.float32)  # the last: between measurements
    cells[:, :-1] = grid.values
    with np.errstate(invalid="ignore", divide="ignore"):
        colours = matplotlib.colormaps[_COLOURS](norm(cells.astype(np.float64)), bytes=True)[..., :3]
    special = {"zero": (cells == 0, _ZERO), "not measured": (np.isnan(cells), _NOT_MEASURED)}
    for where, colour in special.values():
        colours[where] = _bytes(colour)
    broken = np.isinf(cells)
    colours[broken] = _bytes(_NOT_FINITE)
    picture: Pixels = colours[row[:, None], column[None, :]]
    if broken.any():
        stripes = (np.arange(wide)[None, :] + np.arange(high)[:, None]) % 12 < 4
        picture[broken[row[:, None], column[None, :]] & stripes] = _bytes(_STRIPE)
    seen = {name for name, (where, _) in special.items() if where[:, np.unique(column)].any()}
    return picture, seen | ({"not finite"} if broken.any() else set())


def _column_of_pixels(grid: LayerGrid, limits: tuple[float, float], wide: int) -> NDArray[np.int64]:
    """The column of each pixel; one more than there are where nothing was measured for long."""
    steps = grid.steps.astype(np.float64)
    if len(steps) < 2:
        return np.zeros(wide, np.int64)
    gaps = np.diff(steps)
    usual = float(np.median(gaps))
    edges = steps - usual / 2  # a measurement stands in the middle of its column
    at = limits[0] + (np.arange(wide) + 0.5) / wide * (limits[1] - limits[0])
    column = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, len(steps) - 1)
    alone = (column < len(steps) - 1) & (at - edges[column] > 2.5 * usual)
    return np.where(alone, len(steps), column)


def _colour_bar(figure: Picture, axes: Axes, norm: LogNorm, grid: LayerGrid) -> None:
    box = axes.get_position()
    bar_axes = figure.add_axes((box.x1 + 0.014, box.y0, 0.014, box.height))
    there = grid.values[np.isfinite(grid.values) & (grid.values > 0)]
    assert norm.vmin is not None
    assert norm.vmax is not None
    below, above = bool((there < norm.vmin).any()), bool((there > norm.vmax).any())
    ends: Literal["neither", "min", "max", "both"] = "both" if below and above else "min" if below else "neither"
    ends = "max" if above and not below else ends
    colours = matplotlib.cm.ScalarMappable(norm, _COLOURS)
    bar = Colorbar(bar_axes, colours, extend=ends, extendfrac=0.04)
    wide = math.log10(norm.vmax / norm.vmin) >= 2
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=8 if wide else 12))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    bar.outline.set_visible(False)


def _legend(axes: Axes, seen: set[str], tall: float) -> None:
    """What the colours outside of the bar say, beneath the steps."""
    patches = {
        "not finite": Patch(facecolor=_NOT_FINITE, edgecolor=_STRIPE, hatch="////", linewidth=0),
        "zero": Patch(facecolor=_ZERO),
        "not measured": Patch(facecolor=_NOT_MEASURED),
    }
    found = {name: patch for name, patch in patches.items() if name in seen}
    if found:
        axes.legend(
            list(found.values()),
            list(found),
            loc="upper right",
            bbox_to_anchor=(1.0, -0.5 / tall),
            ncols=3,
            fontsize=SMALL_SIZE,
            frameon=False,
            labelcolor=FAINT,
            borderaxespad=0.0,
            columnspacing=1.5,
        )


def _columns_in_words(grid: LayerGrid) -> str:
    columns = len(grid.steps)
    if grid.measured <= columns:
        return f"measured at {grid.measured:,} step{'s' if grid.measured != 1 else ''}"
    each = round(grid.measured / max(1, columns))
    return f"measured at {grid.measured:,} steps, each column the largest of about {each:,}"


def _left_out(grid: LayerGrid) -> str:
    return f"{grid.left_out:,} more layers left out" if grid.left_out else ""


def _bytes(colour: str) -> tuple[int, int, int]:
    red, green, blue = to_rgb(colour)
    return round(red * 255), round(green * 255), round(blue * 255)
