"""Draw the attention of one layer: a panel for each head, and one for their mean.

All panels share one scale. The entropy of each head is above it; that of a collapsed head is highlighted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from numpy.typing import NDArray

from mlflow_stability.figures.style import (
    BAD,
    FAINT,
    INK,
    SMALL_SIZE,
    TEXT_SIZE,
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
)
from mlflow_stability.vocabulary.measured.layer_arrays import AttentionMap

COLOURS = "viridis"
HIDDEN, HIDDEN_NAME = "#e6e6e6", "hidden by the causal mask"
NOT_FINITE_NAME = "not finite"
_EXPONENT = 0.5  # weights are shown by their square root: most are small, and their differences matter
_TICK_SHARES = (0.0, 0.05, 0.2, 0.5, 1.0)  # ticks of the bar, as shares of the largest
COLLAPSED = 0.05  # a head of lower entropy attends to hardly more than one key

Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]


def weight_scale(weights: Floats) -> Normalize:
    """Return a scale from 0 to the round number above the largest weight."""
    highest = min(1.0, float(weights[np.isfinite(weights)].max(initial=0.0)))
    return PowerNorm(_EXPONENT, 0.0, _round_above(highest) if highest > 0 else 1.0, clip=True)


def painted(weights: Floats, scale: Normalize, causal: bool, colours: str = COLOURS) -> tuple[Pixels, set[str]]:
    """Return the colours of the cells, and the names of the special ones among them."""
    finite = np.isfinite(weights)
    values = np.where(finite, weights, 0.0).astype(np.float64)
    cells: Pixels = matplotlib.colormaps[colours](scale(values), bytes=True)[..., :3]
    hidden = np.zeros(weights.shape, bool)
    if causal:  # a model with a memory before these tokens may attend further: only zeros are hidden
        hidden = np.triu(np.ones(weights.shape, bool), 1) & (weights == 0)
    cells[hidden] = rgb_bytes(HIDDEN)
    cells[~finite] = rgb_bytes(BAD)
    return cells, {name for name, where in ((HIDDEN_NAME, hidden), (NOT_FINITE_NAME, ~finite)) if where.any()}


def weight_bar(figure: Picture, place: tuple[float, float, float, float], scale: Normalize) -> Colorbar:
    """Draw the colour bar of weights, with round numbers beside it."""
    axes = figure.add_axes(place)
    bar = Colorbar(axes, ScalarMappable(scale, COLOURS))
    assert scale.vmax is not None
    top = float(scale.vmax)
    bar.ax.yaxis.set_major_locator(FixedLocator([share * top for share in _TICK_SHARES]))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    bar.ax.set_title("weight", fontsize=SMALL_SIZE, loc="left", y=1.0, pad=7)
    return bar


def special_legend(axes: Axes, special: set[str], across: float, up: float) -> None:
    """Name the colours outside of the bar, at a place in the axes."""
    colours = {HIDDEN_NAME: HIDDEN, NOT_FINITE_NAME: BAD}
    patches = {name: Patch(facecolor=colour) for name, colour in colours.items() if name in special}
    if patches:
        add_legend(axes, patches, loc="center right", bbox_to_anchor=(across, up), ncols=2)


def _round_above(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor >= value * (1 - 1e-6))


def about(attention: AttentionMap) -> list[str]:
    """Return facts about a map, without its layer's name and step."""
    facts = [f"{attention.kind}-attention{', causal' if attention.causal else ''}", _tokens_in_words(attention)]
    if len(attention.heads) < attention.all_heads:
        facts.append(f"{len(attention.heads)} of {attention.all_heads} heads")
    scores = attention.max_logit[np.isfinite(attention.max_logit)]
    return [*facts, f"largest score {number_text(float(scores.max()))}"] if len(scores) else facts


def _tokens_in_words(attention: AttentionMap) -> str:
    """``first 64 of 512 tokens``."""
    shape, whole = attention.shape, attention.tokens
    if attention.kind == "self" and whole[0] == whole[1]:
        return _part(shape[0], whole[0], "token")
    return f"{_part(shape[0], whole[0], 'query', 'queries')}, {_part(shape[1], whole[1], 'key')}"


def _part(shown: int, whole: int, noun: str, plural: str = "") -> str:
    plural = plural or f"{noun}s"
    if shown < whole:
        return f"first {shown:,} of {whole:,} {plural}"
    return f"all {shown:,} {plural}" if shown != 1 else f"1 {noun}"


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
