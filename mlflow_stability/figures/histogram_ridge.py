"""Draw histograms as ridges: of all layers at one step, and of one layer over the steps.

Each ridge is in units of its own σ, with that and the name of its shape beside it. Where outliers leave all other
values in two or three bins, the percentiles shape the outline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from mlflow_stability.figures.style import (
    BAD,
    FAINT,
    GRID,
    LINES,
    SMALL_SIZE,
    TEXT_SIZE,
    WIDTH,
    Picture,
    entitle,
    new_figure,
    our_style,
    say_instead,
    shown,
)
from mlflow_stability.vocabulary.measured.layer_arrays import (
    LEVELS,
    NORMAL_IQR,
    PERCENTILES,
    STATISTICS,
    LayerTable,
    Shape,
    distribution_shape,
)

REACH = 6.0  # the length of a ridge to each side, in widths
_FINE = 0.05
_MIN_SMOOTH, _MAX_SMOOTH, _SMOOTH = 0.1, 0.4, 0.7
"""Widths over which an outline is smoothed: at least, at most, and for each width of a bin."""


def width_of(table: LayerTable, row: int) -> float:
    """Return σ from the quartiles, or the standard deviation where these are equal; 0 where all values are equal."""
    p25, p75 = (table.percentiles[row, PERCENTILES.index(name)] for name in ("p25", "p75"))
    quartiles = float(p75 - p25) / NORMAL_IQR
    width = quartiles if quartiles > 0 else float(table.statistics[row, STATISTICS.index("std")])
    return width if np.isfinite(width) else 0.0


def outline(table: LayerTable, row: int) -> tuple[Floats, Floats]:
    """Return places of the outline, in widths, and its heights there, as shares of the highest."""
    width, edges = width_of(table, row), table.edges[row]
    span = float(edges[1] - edges[0])
    if not (width > 0 and span > 0):  # all values are equal: a needle
        return np.array([-REACH, 0, 0, 0, REACH]), np.array([0.0, 0, 1, 0, 0])
    places, below = _shares_below(table, row)
    at = np.arange(-REACH - 2, REACH + 2 + _FINE / 2, _FINE)
    density = np.diff(np.interp(at * width, places, below, left=0.0, right=1.0))
    middle = (at[1:] + at[:-1]) / 2
    sigma = min(_MAX_SMOOTH, max(_MIN_SMOOTH, _SMOOTH * span / width)) / _FINE
    bell = np.exp(-0.5 * (np.arange(-round(3 * sigma), round(3 * sigma) + 1) / sigma) ** 2)
    height = np.convolve(density, bell, "same")
    least, most = (float(table.percentiles[row, PERCENTILES.index(name)]) / width for name in ("min", "max"))
    drawn = (middle >= max(-REACH, least - _MAX_SMOOTH)) & (middle <= min(REACH, most + _MAX_SMOOTH))
    highest = float(height[drawn].max(initial=0.0))
    if not highest > 0:  # everything lies farther out than is drawn
        return np.array([-REACH, REACH]), np.zeros(2)
    return middle[drawn], height[drawn] / highest


def _shares_below(table: LayerTable, row: int) -> tuple[Floats, Floats]:
    """Places, and the share of values below each, by histogram and percentiles together."""
    counts = table.counts[row].astype(np.float64)
    binned = np.concatenate([[0.0], np.cumsum(counts) / max(1.0, counts.sum())])
    inner = slice(1, -1)  # the outermost bins hold what lies beyond them
    places = np.concatenate([table.edges[row][inner], table.percentiles[row]])
    below = np.concatenate([binned[inner], LEVELS])
    order = np.lexsort((below, places))
    return places[order], np.maximum.accumulate(below[order])


MAX_RIDGES = 24
MAX_STEPS = 10  # steps of one layer that are drawn
_WORST_FIRST: tuple[Shape, ...] = ("collapsed", "unknown", "multi-modal", "shifted", "heavy-tailed")
_UNREMARKABLE: tuple[Shape, ...] = ("healthy", "too few values")
_COLOURS: dict[Shape, str] = {
    "healthy": LINES[0],
    "heavy-tailed": LINES[1],
    "shifted": LINES[3],
    "multi-modal": "#7b3fa0",
    "collapsed": BAD,
    "too few values": FAINT,
    "unknown": FAINT,
}
_WORDS: dict[Shape, str] = {"unknown": "not finite"}
_RIDGE, _OVERLAP = 0.3, 1.5  # inches between two ridges, and the height of a ridge in these
_TOP, _BOTTOM, _BETWEEN, _RIGHT = 1.05, 0.6, 1.25, 2.1
_LETTER, _MAX_NAME = 0.078, 34
_TITLES = {"gradient": "Gradient histograms", "weight": "Weight histograms"}

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class _Ridge:
    name: str
    shape: Shape
    width: float  # the standard deviation of a normal distribution with its quartiles
    across: Floats  # in widths
    height: Floats  # as a share of the highest


@our_style()
def histogram_ridges(tables: Sequence[LayerTable], subtitle: str = "", rows: str = "") -> Picture:
    """Draw the layers at the newest of these steps, and beneath over all steps the layer that changed most.

    ``rows`` names the rows, in place of "layers at step 100".
    """
    tables = [table for table in tables if table.has_histograms and table.layers]
    if not tables:
        return _nothing(subtitle)
    newest = tables[-1]
    shapes = [distribution_shape(newest, row) for row in range(len(newest.layers))]
    layers = _layers(newest, shapes)
    if len(tables) < 2:
        return _drawn(newest.what, [layers], [_summary(newest, shapes, rows)], subtitle)
    summary = _summary(newest, shapes)
    reason, layer = _layer_to_follow(tables, shapes)
    if not layer:
        return _drawn(newest.what, [layers], [f"{summary}; {reason}"], subtitle)
    titles = [summary, f"{reason}: {shown(layer, 60)}"]
    return _drawn(newest.what, [layers, _steps(tables, layer)], titles, subtitle)


def _layers(table: LayerTable, shapes: Sequence[Shape]) -> list[_Ridge]:
    """The layers to draw: all, or some of each shape and others evenly between them."""
    rows = list(range(len(shapes)))
    if len(rows) > MAX_RIDGES:
        groups = [[row for row in rows if shapes[row] == shape] for shape in _WORST_FIRST]
        groups = [group for group in groups if group]
        chosen = {row for group in groups for row in _evenly(group, max(1, MAX_RIDGES // 2 // len(groups)))}
        others = [row for row in rows if row not in chosen]
        rows = sorted(chosen | set(_evenly(others, MAX_RIDGES - len(chosen))))
    return [_ridge(table, row, shown(table.layers[row], _MAX_NAME), shapes[row]) for row in rows]


def _evenly(rows: list[int], most: int) -> list[int]:
    places = np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int))
    return [rows[place] for place in places]


def _steps(tables: Sequence[LayerTable], layer: str) -> list[_Ridge]:
    tables = [table for table in tables if layer in table.layers]
    ridges = []
    for place in _evenly(list(range(len(tables))), MAX_STEPS):
        table = tables[place]
        row = table.layers.index(layer)
        ridges.append(_ridge(table, row, f"step {table.step:,}", distribution_shape(table, row)))
    return ridges


def _layer_to_follow(tables: Sequence[LayerTable], shapes: Sequence[Shape]) -> tuple[str, str]:
    """Why a layer is followed over the steps, and its name; empty where no layer ever had finite values."""
    newest = tables[-1]
    finite = [row for row, shape in enumerate(shapes) if shape != "unknown"]
    if finite:
        row = _changed_most(newest, tables[0])
        gone = shapes[row] == "unknown"
        return "Layer that became non-finite" if gone else "Layer with the largest change in width", newest.layers[row]
    for table in reversed(tables[:-1]):
        for row, layer in enumerate(table.layers):
            if layer in newest.layers and distribution_shape(table, row) != "unknown":
                return f"No finite values at step {newest.step:,}; a layer was finite before", layer
    return f"nor at any of the {len(tables)} measured steps", ""


def _changed_most(newest: LayerTable, oldest: LayerTable) -> int:
    """The row of the layer whose width changed most; one that lost its width precedes all others."""
    before = {name: width_of(oldest, row) for row, name in enumerate(oldest.layers)}

    def change(row: int) -> float:
        now, then = width_of(newest, row), before.get(newest.layers[row], 0.0)
        if now > 0 and then > 0:
            return abs(float(np.log(now / then)))
        return -1.0 if now == then else np.inf

    return max(range(len(newest.layers)), key=change)


def _ridge(table: LayerTable, row: int, name: str, shape: Shape) -> _Ridge:
    if shape == "unknown":
        return _Ridge(name, shape, np.nan, np.array([-REACH, REACH]), np.zeros(2))
    return _Ridge(name, shape, width_of(table, row), *outline(table, row))


def _drawn(what: str, panels: list[list[_Ridge]], names: list[str], subtitle: str) -> Picture:
    inches = [(len(ridges) - 1) * _RIDGE + _RIDGE * _OVERLAP + 0.18 for ridges in panels]
    total = _TOP + sum(inches) + _BETWEEN * (len(panels) - 1) + _BOTTOM
    figure = new_figure(total)
    entitle(figure, _TITLES.get(what, what), subtitle)
    left = 0.35 + _LETTER * max(len(ridge.name) for ridges in panels for ridge in ridges)
    foot = total - _TOP
    for ridges, name, tall in zip(panels, names, inches, strict=True):
        foot -= tall
        axes = figure.add_axes((left / WIDTH, foot / total, (WIDTH - left - _RIGHT) / WIDTH, tall / total))
        axes.set_title(name, loc="left", fontsize=TEXT_SIZE, y=1.0, x=(0.12 - left) / (WIDTH - left - _RIGHT), pad=8)
        _draw_ridges(axes, ridges, tall)
        foot -= _BETWEEN
    return figure


def _draw_ridges(axes: Axes, ridges: list[_Ridge], tall: float) -> None:
    top = tall / _RIDGE - (len(ridges) - 1)
    axes.set_ylim(len(ridges) - 1 + 0.4, -top + 0.4)
    axes.set_xlim(-REACH, REACH)
    axes.axvline(0, color=GRID, linewidth=0.8, zorder=0)
    widths = _numbers([ridge.width for ridge in ridges])
    for number, ridge in enumerate(ridges):
        colour, order = _COLOURS[ridge.shape], 1 + number
        feet = number - ridge.height * _OVERLAP
        axes.fill_between(ridge.across, number, feet, facecolor=colour, alpha=0.3, linewidth=0, zorder=order)
        axes.plot(ridge.across, feet, color=colour, linewidth=1.1, zorder=order)
        axes.axhline(number, color=colour, linewidth=0.5, alpha=0.6, zorder=order)
        for across, text, tint in ((1.02, widths[number], FAINT), (1.16, _WORDS.get(ridge.shape, ridge.shape), colour)):
            faint = ridge.shape in _UNREMARKABLE
            axes.text(
                across, number, text, transform=axes.get_yaxis_transform(), va="center", fontsize=SMALL_SIZE,
                color=FAINT if faint else tint,
            )  # fmt: skip
    axes.text(1.02, -0.9, "width", transform=axes.get_yaxis_transform(), va="center", fontsize=SMALL_SIZE, color=FAINT)
    axes.text(1.16, -0.9, "shape", transform=axes.get_yaxis_transform(), va="center", fontsize=SMALL_SIZE, color=FAINT)
    axes.set_yticks(range(len(ridges)), [ridge.name for ridge in ridges])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("value / σ of the layer (σ from quartiles)")


def _numbers(values: Sequence[float]) -> list[str]:
    """Numbers of a column: three digits each, all in one notation."""
    plain = all(1e-2 <= abs(value) < 1e3 for value in values if np.isfinite(value) and value != 0)
    return [_number(value, plain) if np.isfinite(value) else "" for value in values]


def _number(value: float, plain: bool) -> str:
    if plain or value == 0:
        return f"{value:#.3g}".rstrip(".") if value else "0"
    mantissa, _, power = f"{value:.2e}".partition("e")
    return f"{mantissa}e{int(power)}"


def _summary(table: LayerTable, shapes: Sequence[Shape], rows: str = "") -> str:
    names = Counter(_WORDS.get(shape, shape) for shape in shapes)
    counts = ", ".join(f"{count:,} {name}" for name, count in names.most_common())
    drawn = f"{MAX_RIDGES} of them drawn" if len(shapes) > MAX_RIDGES else ""
    return "; ".join(filter(None, [f"{len(shapes):,} {rows or f'layers at step {table.step:,}'}: {counts}", drawn]))


def _nothing(subtitle: str) -> Picture:
    figure = new_figure(_TOP + 1.0)
    entitle(figure, _TITLES["gradient"], subtitle)
    axes = figure.add_axes((0.0, 0.0, 1.0, 0.5))
    axes.set_axis_off()
    say_instead(axes, "not measured")
    return figure
