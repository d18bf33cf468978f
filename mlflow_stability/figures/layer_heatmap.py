"""Draw one quantity by layer and step, as colours, for two to a thousand layers and more: of one run, or of two."""

from __future__ import annotations

import math
from typing import Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import LogNorm, Normalize, to_rgb
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from mlflow_stability.figures.layer_grid import LayerGrid, evened, labels_of
from mlflow_stability.figures.style import (
    BAD,
    DPI,
    GRID,
    SMALL_SIZE,
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
from mlflow_stability.vocabulary.measured.layer_comparison import OUTSIDE, LayerComparison, logarithmic_limits
from mlflow_stability.vocabulary.text.phrases import counted

_COLOURS = "viridis"
_NOT_FINITE, _STRIPE, _ZERO, _NOT_MEASURED = BAD, "#ffd9c2", "#000000", "#e6e6e6"
_SPECIAL_OF_TWO = {
    "not finite": BAD,
    "zero": _ZERO,
    "absent layer": "#f2e3c9",
    "absent head": "#f2e3c9",
    "not measured": "#d9d9d9",
    OUTSIDE: "#ffffff",
}
_ROW, _THIN_ROW, _MAX_HIGH_ROWS = 0.3, 0.17, 24
_MIN_HEIGHT, _MAX_HEIGHT = 0.9, 8.0
_LABEL_HEIGHT = 0.17
_LETTER = 0.078  # inches that a letter of a label takes
_MAX_NAME = 34
_TOP, _BOTTOM, _RIGHT = 0.80, 0.9, 1.15
_TOP_OF_TWO, _BOTTOM_OF_TWO, _RIGHT_OF_TWO, _BETWEEN, _MAX_NAME_OF_TWO = 1.1, 0.95, 1.2, 0.25, 26
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
    """Draw the model's input at the top and its output at the bottom; what has no value has a colour of its own."""
    grid = evened(grid)
    count = len(grid.layers)
    tall, left, common, middles, names = _rows(grid.layers, _MAX_NAME)
    total = _TOP + tall + _BOTTOM
    figure = new_figure(total)
    rows = "expert" if grid.quantity == "router_share" else "layer"
    where = f"{count} {rows}{'s' if count != 1 else ''}" + (f" of {shown(common.rstrip('.'), 40)}" if common else "")
    facts = [where, f"measured at {counted(grid.measured, 'step')}"]
    if grid.measured > len(grid.steps):
        facts[1] += f", each column the largest of about {round(grid.measured / max(1, len(grid.steps))):,}"
    if grid.left_out:
        facts.append(f"{grid.left_out:,} more layers left out")
    entitle(figure, f"{_TITLES.get(grid.quantity, grid.quantity)} by {rows}", " · ".join(facts), subtitle)
    at = (left / WIDTH, _BOTTOM / total, (WIDTH - left - _RIGHT) / WIDTH, tall / total)
    axes = figure.add_axes(at)
    if not np.size(grid.values) or np.isnan(grid.values).all():
        axes.set_axis_off()
        say_instead(axes, "not measured")
        return figure
    norm = LogNorm(*logarithmic_limits(grid.values))
    first, last = int(grid.steps[0]), max(grid.last, int(grid.steps[-1]))
    step_axis(axes, first, last, labels=True)
    limits = axes.get_xlim()
    pixels = (round(at[2] * WIDTH * DPI), round(tall * DPI))
    picture, special = _painted(grid, norm, limits, pixels)
    axes.imshow(picture, extent=(*limits, count - 0.5, -0.5), aspect="auto", interpolation="nearest", zorder=1)
    axes.set_yticks(middles, names)
    axes.tick_params(axis="y", length=2)
    _colour_bar(figure, axes, norm, grid)
    patches = {
        "not finite": Patch(facecolor=_NOT_FINITE, edgecolor=_STRIPE, hatch="////", linewidth=0),
        "zero": Patch(facecolor=_ZERO),
        "not measured": Patch(facecolor=_NOT_MEASURED),
    }
    patches = {name: patch for name, patch in patches.items() if name in special}
    if patches:
        place = (1.0, -0.5 / tall)
        add_legend(axes, patches, loc="upper right", bbox_to_anchor=place, ncols=3, columnspacing=1.5)
    return figure


def _rows(layers: tuple[str, ...], longest: int) -> tuple[float, float, str, list[float], list[str]]:
    """Return the height of rows and the room to their left, in inches, and their common name, middles and names."""
    tall = min(_MAX_HEIGHT, max(_MIN_HEIGHT, len(layers) * (_ROW if len(layers) <= _MAX_HIGH_ROWS else _THIN_ROW)))
    common, labels = labels_of(layers, max(1, int(tall / _LABEL_HEIGHT)))
    names = [shown(label.name, longest) for label in labels]
    left = 0.35 + _LETTER * max(map(len, names), default=0)
    return tall, left, common, [label.middle for label in labels], names


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
    _logarithmic_ticks(bar, wide, numticks=8 if wide else 12)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    bar.outline.set_visible(False)


def _logarithmic_ticks(bar: Colorbar, wide: bool, numticks: int) -> None:
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=numticks))
    bar.ax.yaxis.set_minor_locator(NullLocator())


@our_style()
def layers_beside(beside: LayerComparison, names: tuple[str, str]) -> Picture:
    """Draw both runs with the same rows and columns; what has no value has a colour of its own."""
    tall, left, common, middles, rows = _rows(beside.layers, _MAX_NAME_OF_TWO)
    total = _TOP_OF_TWO + tall + _BOTTOM_OF_TWO
    figure = new_figure(total)
    extreme = "smallest" if beside.smallest else "largest"
    facts = [f"all in {shown(common.rstrip('.'), 40)}"] if common else []
    facts += [f"each column the {extreme} of {beside.width:,} steps"] if beside.width > 1 else []
    entitle(figure, beside.title, " · ".join(facts))
    low, high = beside.colour_limits
    norm = LogNorm(low, high) if beside.logarithmic else Normalize(low, high)
    wide = (WIDTH - left - _RIGHT_OF_TWO - _BETWEEN) / 2
    for number, name in enumerate(names):
        begin = left + number * (wide + _BETWEEN)
        axes = figure.add_axes((begin / WIDTH, _BOTTOM_OF_TWO / total, wide / WIDTH, tall / total))
        _draw_run(axes, beside, number, norm, name)
        axes.set_yticks(middles, rows if number == 0 else [""] * len(rows))
        axes.tick_params(axis="y", length=2 if number == 0 else 0)
    box = axes.get_position()
    bar = Colorbar(figure.add_axes((box.x1 + 0.014, box.y0, 0.014, box.height)), ScalarMappable(norm, _COLOURS))
    if beside.logarithmic:
        _logarithmic_ticks(bar, high / low >= 100, numticks=8)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    bar.outline.set_visible(False)
    bar.set_label(beside.measure, fontsize=SMALL_SIZE)
    both = [beside.without_colour(number) for number in (0, 1)]
    patches = {
        name: Patch(facecolor=colour, edgecolor=GRID)
        for name, colour in _SPECIAL_OF_TWO.items()
        if any(cells[name].any() for cells in both if name in cells)
    }
    if patches:
        add_legend(axes, patches, loc="upper right", bbox_to_anchor=(1.0, -0.52 / tall), ncols=5)
    return figure


def _draw_run(axes: Axes, beside: LayerComparison, number: int, norm: Normalize, name: str) -> None:
    extent = (beside.begin, beside.begin + beside.columns * beside.width, len(beside.layers) - 0.5, -0.5)
    cells = (beside.first, beside.second)[number]
    finite = np.where(np.isfinite(cells), cells, np.nan).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        picture = np.array(matplotlib.colormaps[_COLOURS](norm(finite))[..., :3], np.float64)
    for reason, where in beside.without_colour(number).items():
        picture[where] = to_rgb(_SPECIAL_OF_TWO[reason])
    axes.imshow(picture, extent=extent, aspect="auto", interpolation="nearest")
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
