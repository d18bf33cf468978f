"""Draw the entropy of attention heads over the steps, one panel for each layer.

Few heads are lines, many are rows of colours. The scale from 0 to 1 is stretched at both ends, where heads collapse or
become uniform, and is the same for all runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import FuncNorm
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator
from numpy.typing import ArrayLike, NDArray

from mlflow_stability.figures.attention_heatmap import COLLAPSED
from mlflow_stability.figures.curve import Curve, fitted
from mlflow_stability.figures.layer_grid import labels_of
from mlflow_stability.figures.style import (
    BAD,
    DPI,
    GRID,
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
from mlflow_stability.vocabulary.text.phrases import counted

_STRETCH = 3.0  # exponent at the ends of the scale; 1 stretches nothing
_TICKS, _FEW_TICKS = (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0), (0.0, 0.1, 0.5, 0.9, 1.0)


def entropy_height(entropy: ArrayLike) -> Floats:
    """Return the height of an entropy on the scale, from 0 to 1."""
    from_middle = 2 * np.clip(np.asarray(entropy, np.float64), 0.0, 1.0) - 1
    stretched: Floats = np.sign(from_middle) * (1 - (1 - np.abs(from_middle)) ** (1 / _STRETCH))
    return (1 + stretched) / 2


def entropy_at(height: ArrayLike) -> Floats:
    from_middle = 2 * np.clip(np.asarray(height, np.float64), 0.0, 1.0) - 1
    squeezed: Floats = np.sign(from_middle) * (1 - (1 - np.abs(from_middle)) ** _STRETCH)
    return (1 + squeezed) / 2


def entropy_norm() -> FuncNorm:
    return FuncNorm((entropy_height, entropy_at), 0.0, 1.0)


def entropy_ticks(axes: Axes, inches: float) -> None:
    """Write numbers beside a vertical axis of entropies, as many as fit."""
    axes.yaxis.set_major_locator(FixedLocator(_TICKS if inches >= 1.3 else _FEW_TICKS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    axes.minorticks_off()


MAX_LAYERS = 48  # of more layers this many are drawn, evenly chosen
MAX_LINES, MAX_LAYERS_WITH_LINES = 8, 12  # up to this many heads and layers are lines
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.7, 0.3, 1.2, 0.62
_ABOVE, _GAP = 0.3, 0.2
_BAR = 0.6
_COLOURS, _ZONE, _NOT_MEASURED = "viridis", "#fbe4d8", "#e6e6e6"
_MAX_STRETCHES = 240  # stretches of steps in a panel
_MAX_MARKED_POINTS = 40

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LayerEntropy:
    layer: str
    heads: tuple[int, ...]
    curves: tuple[Curve, ...]  # one for each of `heads`


@our_style()
def attention_entropy(layers: Sequence[LayerEntropy], title: str, name: str = "", axis: str = "step") -> Picture:
    """Draw the layers of a run of this name; ``axis`` names what the curves run over."""
    count = len(layers)
    if count > MAX_LAYERS:
        layers = [layers[place] for place in np.linspace(0, count - 1, MAX_LAYERS).round().astype(int)]
    heads = max((len(layer.heads) for layer in layers), default=0)
    as_lines = heads <= MAX_LINES and len(layers) <= MAX_LAYERS_WITH_LINES
    columns = next(
        number for number, most in ((1, 1), (2, 4), (3, 12), (4, 24), (6, MAX_LAYERS)) if len(layers) <= most
    )
    rows = max(1, -(-len(layers) // columns))
    tall = 3.0 if as_lines else min(4.0, max(1.2, heads * 0.16))
    if columns > 1:
        few, many = (1.7, 1.0) if as_lines else (1.5, 0.85)
        tall = few if columns < 4 else many
    right = _RIGHT if as_lines else _RIGHT + _BAR
    wide = (WIDTH - _LEFT - right - (columns - 1) * _GAP) / columns
    total = _TOP + rows * (tall + _ABOVE) - _ABOVE + _BOTTOM
    figure = new_figure(total)
    common, labels = labels_of(tuple(layer.layer for layer in layers), max(1, len(layers)))
    where = f", all in {shown(common.rstrip('.'), 40)}" if common else ""
    facts = [f"{counted(count, 'layer')}{where}", counted(heads, "head")]
    facts += [f"{count - len(layers)} layers left out"] if count > len(layers) else []
    entitle(figure, title, " · ".join([*facts, "scale stretched towards 0 and 1"]), name)
    if not layers or not any(len(curve) for layer in layers for curve in layer.curves):
        say_instead(figure.add_axes((0, 0, 1, 0.8), frameon=False, xticks=[], yticks=[]), "not measured")
        return figure
    first, last = _span(layers)
    for number, (layer, label) in enumerate(zip(layers, labels, strict=True)):
        row, column = divmod(number, columns)
        left, bottom = _LEFT + column * (wide + _GAP), total - _TOP - row * (tall + _ABOVE) - tall
        axes = figure.add_axes((left / WIDTH, bottom / total, wide / WIDTH, tall / total))
        axes.set_title(
            shown(label.name or "the model", int(wide / 0.082)), loc="left", fontsize=SMALL_SIZE, y=1.0, pad=3
        )
        _steps(axes, first, last, wide, number + columns >= len(layers))
        (_draw_lines if as_lines else _draw_rows)(axes, layer, column == 0)
    figure.text(0.5, 0.1 / total, axis, ha="center", va="bottom", fontsize=TEXT_SIZE)
    middle = 1 - (_TOP + (total - _TOP - _BOTTOM) / 2) / total
    rows_name = "entropy" if as_lines else "head"
    figure.text(0.12 / WIDTH, middle, rows_name, rotation=90, ha="left", va="center", fontsize=TEXT_SIZE)
    if not as_lines:
        tall = min(3.0, total - _TOP - _BOTTOM)
        place = ((WIDTH - 0.66) / WIDTH, 1 - (_TOP + tall) / total, 0.13 / WIDTH, tall / total)
        bar = Colorbar(figure.add_axes(place), ScalarMappable(entropy_norm(), _COLOURS))
        entropy_ticks(bar.ax, tall)
        bar.ax.set_title("entropy", fontsize=SMALL_SIZE, loc="left", y=1.0, pad=7)
        bar.outline.set_visible(False)
    _legend(figure, total, max(layers, key=lambda layer: len(layer.heads)).heads if as_lines else ())
    return figure


def _span(layers: Sequence[LayerEntropy]) -> tuple[int, int]:
    curves = [curve for layer in layers for curve in layer.curves if len(curve)]
    return min(int(curve.steps.min()) for curve in curves), max(int(curve.steps.max()) for curve in curves)


def _steps(axes: Axes, first: int, last: int, wide: float, labels: bool) -> None:
    room = (last - first) * 0.02 or 0.5
    axes.set_xlim(first - room, last + room)
    if first == last:
        axes.xaxis.set_major_locator(FixedLocator([first]))
    else:
        ticks = 7 if wide > 5 else 4 if wide > 2 else 2
        axes.xaxis.set_major_locator(MaxNLocator(ticks, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.tick_params(axis="x", labelbottom=labels, length=3 if labels else 0, pad=2)


def _short(value: float) -> str:
    return f"{value / 1000:,.6g}k" if abs(value) >= 10_000 else f"{value:,.0f}"


def _draw_lines(axes: Axes, layer: LayerEntropy, left: bool) -> None:
    axes.axhspan(0.0, COLLAPSED, color=_ZONE, linewidth=0, zorder=0)
    axes.set_yscale("function", functions=(entropy_height, entropy_at))
    axes.set_ylim(0.0, 1.0)
    entropy_ticks(axes, axes.bbox.height / DPI)
    axes.tick_params(axis="y", labelleft=left, length=3 if left else 0)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for head, curve in zip(layer.heads, layer.curves, strict=True):
        drawn = fitted(curve, _MAX_STRETCHES)
        parted = np.flatnonzero(np.diff(drawn.attempts) != 0) + 1
        steps = np.insert(drawn.steps.astype(np.float64), parted, np.nan)
        values = np.insert(drawn.low, parted, np.nan)
        mark = "o" if len(drawn) <= _MAX_MARKED_POINTS else None
        colour = _head_colour(head, layer.heads)
        axes.plot(steps, values, color=colour, linewidth=1.3, marker=mark, markersize=3, clip_on=False)


def _draw_rows(axes: Axes, layer: LayerEntropy, left: bool) -> None:
    """A row for each head, from the first at the top."""
    curves = [fitted(curve, _MAX_STRETCHES) for curve in layer.curves]
    steps = np.unique(np.concatenate([curve.steps for curve in curves])).astype(np.float64)
    cells = np.full((len(curves), len(steps)), np.nan)
    for row, curve in enumerate(curves):
        cells[row, np.searchsorted(steps, curve.steps)] = curve.low  # the later attempt of a repeated step
    low, high = axes.get_xlim()
    at = np.linspace(low, high, 2 * _MAX_STRETCHES)
    column = np.searchsorted((steps[1:] + steps[:-1]) / 2, at)
    colours = matplotlib.colormaps[_COLOURS](entropy_height(np.nan_to_num(cells)), bytes=True)[..., :3]
    with np.errstate(invalid="ignore"):
        colours[cells < COLLAPSED] = rgb_bytes(BAD)
    colours[np.isnan(cells)] = rgb_bytes(_NOT_MEASURED)
    count = len(curves)
    axes.imshow(colours[:, column], extent=(low, high, count - 0.5, -0.5), aspect="auto", interpolation="nearest")
    ticks = MaxNLocator(4, integer=True, steps=[1, 2, 4, 5, 8, 10], min_n_ticks=1).tick_values(0, max(1, count - 1))
    rows = [int(tick) for tick in ticks if 0 <= tick < count]
    axes.set_yticks(rows, [str(layer.heads[row]) for row in rows])
    axes.tick_params(axis="y", labelleft=left, length=2 if left else 0, pad=2)


def _head_colour(head: int, heads: tuple[int, ...]) -> str:
    share = heads.index(head) / max(1, len(heads) - 1)
    return str(matplotlib.colors.to_hex(matplotlib.colormaps[_COLOURS](0.88 * share)))


def _legend(figure: Picture, total: float, heads: tuple[int, ...]) -> None:
    marks: dict[str, Artist] = {
        f"head {head}": Line2D([], [], color=_head_colour(head, heads), linewidth=2) for head in heads
    }
    marks[f"collapsed: below {COLLAPSED}"] = Patch(facecolor=_ZONE if heads else BAD)
    add_legend(
        figure,
        marks,
        loc="upper left",
        bbox_to_anchor=(_LEFT / WIDTH - 0.01, 1 - 0.62 / total),
        ncols=len(marks),
        handlelength=1.2,
        columnspacing=1.1,
        handletextpad=0.4,
    )
