"""Draw the attention of one layer: a panel for each head, and one for their mean.

All panels share one scale. The entropy of each head is above it; that of a collapsed head is highlighted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from mlflow_stability.figures.attention_cells import (
    COLLAPSED,
    Floats,
    about,
    painted,
    special_legend,
    weight_bar,
    weight_scale,
)
from mlflow_stability.figures.style import (
    BAD,
    FAINT,
    INK,
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
from mlflow_stability.vocabulary.measured import AttentionMap

_MAX_COLUMNS = 7
_MAX_WIDTH = 2.9
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.75, 0.95, 0.98, 0.78
_ABOVE = 0.26  # height of the words above a panel
_GAP = 0.14
_MIN_ASPECT, _MAX_ASPECT = 0.4, 1.4  # height of a panel by its width
_SMALL_PANEL = 1.5
_MAX_LAYER_NAME = 64


@dataclass(frozen=True, slots=True)
class _Panel:
    name: str
    weights: Floats
    entropy: float


@dataclass(frozen=True, slots=True)
class _Mosaic:
    columns: int
    rows: int
    width: float
    height: float

    @property
    def across(self) -> float:
        return self.columns * (self.width + _GAP) - _GAP

    @property
    def down(self) -> float:
        return self.rows * (self.height + _ABOVE + _GAP) - _GAP - _ABOVE


@our_style()
def attention_heatmap(attention: AttentionMap, fact: str = "", name: str = "", title: str = "") -> Picture:
    """Draw one layer at one step; `fact` is a fact beside those of the map, `name` that of its run.

    A `title` replaces the default one, which moves below.
    """
    panels = _panels(attention)
    queries, keys = attention.shape
    mosaic = _mosaic(len(panels), queries / max(1, keys))
    total = _TOP + mosaic.down + _BOTTOM
    figure = new_figure(total)
    default = f"Attention in {shown(attention.layer or 'the model', _MAX_LAYER_NAME)}"
    entitle(
        figure,
        title or default,
        " · ".join(filter(None, [default if title else "", f"step {attention.step:,}", *about(attention), fact])),
        name,
    )
    if not queries or not keys:
        say_instead(figure.add_axes((0, 0, 1, 0.8), frameon=False, xticks=[], yticks=[]), "no tokens")
        return figure
    scale = weight_scale(np.concatenate([panel.weights.reshape(-1) for panel in panels]))
    special: set[str] = set()
    for number, panel in enumerate(panels):
        axes = figure.add_axes(_place(mosaic, number, total))
        cells, names = painted(panel.weights, scale, attention.causal)
        special |= names
        axes.imshow(cells, aspect="auto", interpolation="nearest")
        is_lowest = number + mosaic.columns >= len(panels)
        _dress(axes, panel, mosaic.width < _SMALL_PANEL, left=number % mosaic.columns == 0, lowest=is_lowest)
    _name_axes(figure, mosaic, total, special)
    tall = min(mosaic.down, 3.2)
    place = ((_LEFT + mosaic.across + 0.16) / WIDTH, 1 - (_TOP + tall) / total, 0.15 / WIDTH, tall / total)
    weight_bar(figure, place, scale)
    return figure


def _panels(attention: AttentionMap) -> list[_Panel]:
    mean = _Panel(f"mean of {attention.all_heads}", attention.average.astype(np.float32), math.nan)
    if attention.all_heads == 1 and attention.heads == (0,):
        mean = _Panel("head 0", mean.weights, float(attention.entropy[0]))
        return [mean]
    panels = [mean]
    for head, weights in zip(attention.heads, attention.weights, strict=True):
        entropy = float(attention.entropy[head]) if head < attention.all_heads else math.nan
        panels.append(_Panel(f"head {head}", weights.astype(np.float32), entropy))
    return panels


def _mosaic(count: int, ratio: float) -> _Mosaic:
    """Columns for a picture about as wide as high, as MLflow's image card is a square, with few places empty."""
    shape = min(_MAX_ASPECT, max(_MIN_ASPECT, ratio))
    square = math.sqrt(count * (shape + _ABOVE))
    columns = min(range(1, min(count, _MAX_COLUMNS) + 1), key=lambda number: -count % number + 5 * abs(number - square))
    room = WIDTH - _LEFT - _RIGHT - (columns - 1) * _GAP
    width = min(_MAX_WIDTH, room / columns)
    return _Mosaic(columns, -(-count // columns), width, width * shape)


def _place(mosaic: _Mosaic, number: int, total: float) -> tuple[float, float, float, float]:
    row, column = divmod(number, mosaic.columns)
    left = _LEFT + column * (mosaic.width + _GAP)
    top = _TOP + row * (mosaic.height + _ABOVE + _GAP)
    return left / WIDTH, 1 - (top + mosaic.height) / total, mosaic.width / WIDTH, mosaic.height / total


def _dress(axes: Axes, panel: _Panel, small: bool, *, left: bool, lowest: bool) -> None:
    size = SMALL_SIZE - 1 if small else SMALL_SIZE
    is_mean = math.isnan(panel.entropy) and panel.name.startswith("mean")
    entropy = f"{panel.entropy:.2f}" if math.isfinite(panel.entropy) else "not finite"
    name = panel.name if is_mean else f"{panel.name} · {entropy}"
    collapsed = panel.entropy < COLLAPSED
    axes.set_title(
        name,
        loc="left",
        fontsize=size,
        y=1.0,
        pad=3,
        color=BAD if collapsed else INK,
        fontweight="bold" if collapsed or is_mean else "normal",
    )
    for axis, labels in ((axes.xaxis, lowest), (axes.yaxis, left)):
        ticks = MaxNLocator(3 if small else 5, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)
        axis.set_major_locator(ticks if labels else NullLocator())  # ticks are most of the cost of a panel
        if labels:
            axis.set_tick_params(labelsize=size, length=2, pad=2)


def _name_axes(figure: Picture, mosaic: _Mosaic, total: float, special: set[str]) -> None:
    middle = 1 - (_TOP + mosaic.down / 2) / total
    figure.text(0.24 / WIDTH, middle, "query position", rotation=90, ha="left", va="center", fontsize=TEXT_SIZE)
    across = (_LEFT + mosaic.across / 2) / WIDTH
    figure.text(across, 0.36 / total, "key position", ha="center", va="center", fontsize=TEXT_SIZE)
    figure.text(
        0.012,
        0.06 / total,
        "Number above a head: its entropy. 0: each query attends to one key; 1: uniform over all keys.",
        ha="left",
        va="bottom",
        fontsize=SMALL_SIZE - 1,
        color=FAINT,
    )
    frame = figure.add_axes((0, 0, 1, 1), frameon=False, xticks=[], yticks=[])
    special_legend(frame, special, 0.988, 0.14 / total)
