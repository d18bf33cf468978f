"""Draw one quantity by layer and step, as colours, for two to a thousand layers and more."""

from __future__ import annotations

import math
from typing import Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LogNorm
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from numpy.typing import NDArray

from mlflow_stability.figures.layer_grid import LayerGrid, evened, labels_of
from mlflow_stability.figures.style import (
    BAD,
    DPI,
    WIDTH,
    Picture,
    add_legend,
    entitle,
    new_figure,
    number_text,
    our_style,
    rgb_bytes,
    say_instead,
    shown,
    step_axis,
)
from mlflow_stability.vocabulary.measured.layer_comparison import logarithmic_limits
from mlflow_stability.vocabulary.text.phrases import counted

_COLOURS = "viridis"
_NOT_FINITE, _STRIPE, _ZERO, _NOT_MEASURED = BAD, "#ffd9c2", "#000000", "#e6e6e6"
_ROW, _THIN_ROW = 0.3, 0.17
_MIN_HEIGHT, _MAX_HEIGHT = 0.9, 8.0
_LABEL_HEIGHT = 0.17
_LETTER = 0.078  # inches that a letter of a label takes
_MAX_NAME = 34
_TOP, _BOTTOM, _RIGHT = 0.80, 0.9, 1.15
_TITLES = {
    "grad_norm": "Gradient norm",
    "update_ratio": "Update ratio",
    "param_norm": "Parameter norm",
    "activation_rms": "Activation RMS",
    "router_share": "Share of tokens",
    "activation_dead": "Share of dead units",
}

Pixels = NDArray[np.uint8]


@our_style()
def layer_heatmap(grid: LayerGrid, subtitle: str = "") -> Picture:
    """Draw the input of the model at the top and its output at the bottom.

    What is not finite, zero, or not measured has a colour of its own.
    """
    grid = evened(grid)
    count = len(grid.layers)
    tall = min(_MAX_HEIGHT, max(_MIN_HEIGHT, count * (_ROW if count <= 24 else _THIN_ROW)))
    common, labels = labels_of(grid.layers, max(1, int(tall / _LABEL_HEIGHT)))
    names = [shown(label.name, _MAX_NAME) for label in labels]
    left = 0.35 + _LETTER * max(map(len, names), default=0)
    total = _TOP + tall + _BOTTOM
    figure = new_figure(total)
    rows = "expert" if grid.quantity == "router_share" else "layer"
    where = f"{count} {rows}{'s' if count != 1 else ''}" + (f" of {shown(common.rstrip('.'), 40)}" if common else "")
    title = f"{_TITLES.get(grid.quantity, grid.quantity)} by {rows}"
    entitle(figure, title, " · ".join(filter(None, [where, _columns_in_words(grid), _left_out(grid)])), subtitle)
    place = (left / WIDTH, _BOTTOM / total, (WIDTH - left - _RIGHT) / WIDTH, tall / total)
    axes = figure.add_axes(place)
    if not np.size(grid.values) or np.isnan(grid.values).all():
        axes.set_axis_off()
        say_instead(axes, "not measured")
        return figure
    norm = LogNorm(*logarithmic_limits(grid.values))
    first, last = int(grid.steps[0]), max(grid.last, int(grid.steps[-1]))
    step_axis(axes, first, last, labels=True)
    limits = axes.get_xlim()
    pixels = (round(place[2] * WIDTH * DPI), round(tall * DPI))
    picture, special = _painted(grid, norm, limits, pixels)
    axes.imshow(picture, extent=(*limits, count - 0.5, -0.5), aspect="auto", interpolation="nearest", zorder=1)
    axes.set_yticks([label.middle for label in labels], names)
    axes.tick_params(axis="y", length=2)
    _colour_bar(figure, axes, norm, grid)
    _legend(axes, special, tall)
    return figure


def _painted(
    grid: LayerGrid, norm: LogNorm, limits: tuple[float, float], pixels: tuple[int, int]
) -> tuple[Pixels, set[str]]:
    """The colours of all pixels, and the names of the special ones among them."""
    wide, high = pixels
    column = _column_of_pixels(grid, limits, wide)
    row = np.arange(high) * len(grid.layers) // high
    cells = np.full((len(grid.layers), len(grid.steps) + 1), np.nan, np.float32)  # the last: between measurements
    cells[:, :-1] = grid.values
    with np.errstate(invalid="ignore", divide="ignore"):
        colours = matplotlib.colormaps[_COLOURS](norm(cells.astype(np.float64)), bytes=True)[..., :3]
    special = {"zero": (cells == 0, _ZERO), "not measured": (np.isnan(cells), _NOT_MEASURED)}
    for where, colour in special.values():
        colours[where] = rgb_bytes(colour)
    broken = np.isinf(cells)
    colours[broken] = rgb_bytes(_NOT_FINITE)
    picture: Pixels = colours[row[:, None], column[None, :]]
    if broken.any():
        stripes = (np.arange(wide)[None, :] + np.arange(high)[:, None]) % 12 < 4
        picture[broken[row[:, None], column[None, :]] & stripes] = rgb_bytes(_STRIPE)
    names = {name for name, (where, _) in special.items() if where[:, np.unique(column)].any()}
    return picture, names | ({"not finite"} if broken.any() else set())


def _column_of_pixels(grid: LayerGrid, limits: tuple[float, float], wide: int) -> NDArray[np.int64]:
    """The column of each pixel; one beyond the last where nothing was measured for long."""
    steps = grid.steps.astype(np.float64)
    if len(steps) < 2:
        return np.zeros(wide, np.int64)
    gaps = np.diff(steps)
    gap = float(np.median(gaps))
    edges = steps - gap / 2  # a measurement is in the middle of its column
    at = limits[0] + (np.arange(wide) + 0.5) / wide * (limits[1] - limits[0])
    column = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, len(steps) - 1)
    alone = (column < len(steps) - 1) & (at - edges[column] > 2.5 * gap)
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


def _legend(axes: Axes, special: set[str], tall: float) -> None:
    """Name the colours outside of the bar, beneath the steps."""
    patches = {
        "not finite": Patch(facecolor=_NOT_FINITE, edgecolor=_STRIPE, hatch="////", linewidth=0),
        "zero": Patch(facecolor=_ZERO),
        "not measured": Patch(facecolor=_NOT_MEASURED),
    }
    patches = {name: patch for name, patch in patches.items() if name in special}
    if patches:
        place = (1.0, -0.5 / tall)
        add_legend(axes, patches, loc="upper right", bbox_to_anchor=place, ncols=3, columnspacing=1.5)


def _columns_in_words(grid: LayerGrid) -> str:
    columns = len(grid.steps)
    if grid.measured <= columns:
        return f"measured at {counted(grid.measured, 'step')}"
    width = round(grid.measured / max(1, columns))
    return f"measured at {grid.measured:,} steps, each column the largest of about {width:,}"


def _left_out(grid: LayerGrid) -> str:
    return f"{grid.left_out:,} more layers left out" if grid.left_out else ""
