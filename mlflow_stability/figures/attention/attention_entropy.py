"""Entropy of attention heads over the steps, one panel for each layer.

In: the curves of all heads, by layer. Out: a figure. Guarantees: few heads are lines, many are rows of colours; 1 to
48 layers of 32 heads and more are legible; collapsed heads stand out. The scale from 0 to 1 is stretched at both
ends, where heads collapse or become uniform, and is the same for all runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import FuncNorm, to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator
from numpy.typing import ArrayLike, NDArray

from mlflow_stability.figures.attention.attention_cells import COLLAPSED
from mlflow_stability.figures.layers.layer_label import labels_of
from mlflow_stability.figures.run_page.curve import Curve, fitted
from mlflow_stability.figures.scale import number_text
from mlflow_stability.figures.style import (
    BAD,
    DPI,
    FAINT,
    GRID,
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

_POWER = 3.0
"""How much the ends are stretched; 1: not at all."""
_MANY, _FEW = (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0), (0.0, 0.1, 0.5, 0.9, 1.0)


def entropy_height(entropy: ArrayLike) -> Floats:
    """How high an entropy stands, from 0 to 1."""
    from_middle = 2 * np.clip(np.asarray(entropy, np.float64), 0.0, 1.0) - 1
    stretched: Floats = np.sign(from_middle) * (1 - (1 - np.abs(from_middle)) ** (1 / _POWER))
    return (1 + stretched) / 2


def entropy_at(height: ArrayLike) -> Floats:
    """The entropy that stands so high."""
    from_middle = 2 * np.clip(np.asarray(height, np.float64), 0.0, 1.0) - 1
    squeezed: Floats = np.sign(from_middle) * (1 - (1 - np.abs(from_middle)) ** _POWER)
    return (1 + squeezed) / 2


def entropy_norm() -> FuncNorm:
    """The same for colours."""
    return FuncNorm((entropy_height, entropy_at), 0.0, 1.0)


def entropy_ticks(axes: Axes, inches: float) -> None:
    """Numbers beside a vertical axis of entropies, as many as there is room for."""
    axes.yaxis.set_major_locator(FixedLocator(_MANY if inches >= 1.3 else _FEW))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    axes.minorticks_off()


MOST_LAYERS = 48
"""Of more layers so many are drawn, evenly chosen."""
MOST_LINES, MOST_LINED_LAYERS = 8, 12
"""Up to so many heads and layers are lines."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.7, 0.3, 1.2, 0.62
_ABOVE, _GAP = 0.3, 0.2
_BAR = 0.6
_COLOURS, _ZONE, _NOT_MEASURED = "viridis", "#fbe4d8", "#e6e6e6"
_FINEST = 240
"""How many stretches of steps a panel has at most."""
_MARKED_UP_TO = 40

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LayerEntropy:
    """The heads of one layer."""

    layer: str
    heads: tuple[int, ...]
    curves: tuple[Curve, ...]
    """One for each of `heads`."""


def attention_entropy(layers: Sequence[LayerEntropy], title: str, name: str = "", axis: str = "step") -> Picture:
    """The picture of a run; ``axis``: what the curves run over."""
    with our_style():
        return _attention_entropy(layers, title, name, axis)


def _attention_entropy(layers: Sequence[LayerEntropy], title: str, run: str, axis: str) -> Picture:
    every = len(layers)
    if every > MOST_LAYERS:
        layers = [layers[each] for each in np.linspace(0, every - 1, MOST_LAYERS).round().astype(int)]
    heads = max((len(each.heads) for each in layers), default=0)
    as_lines = heads <= MOST_LINES and len(layers) <= MOST_LINED_LAYERS
    columns = next(count for count, most in ((1, 1), (2, 4), (3, 12), (4, 24), (6, MOST_LAYERS)) if len(layers) <= most)
    rows = max(1, -(-len(layers) // columns))
    tall = (3.0 if columns == 1 else 1.7 if columns < 4 else 1.0) if as_lines else _tall(heads, columns)
    right = _RIGHT if as_lines else _RIGHT + _BAR
    wide = (WIDTH - _LEFT - right - (columns - 1) * _GAP) / columns
    total = _TOP + rows * (tall + _ABOVE) - _ABOVE + _BOTTOM
    figure = new_figure(total)
    common, labels = labels_of(tuple(each.layer for each in layers), max(1, len(layers)))
    where = f", all in {shown(common.rstrip('.'), 40)}" if common else ""
    said = [f"{every} layer{'s' if every != 1 else ''}{where}", f"{heads} head{'s' if heads != 1 else ''}"]
    said += [f"{every - len(layers)} layers left out"] if every > len(layers) else []
    entitle(figure, title, " · ".join([*said, "scale stretched towards 0 and 1"]), run)
    if not layers or not any(len(curve) for each in layers for curve in each.curves):
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
    name = "entropy" if as_lines else "head"
    middle = 1 - (_TOP + (total - _TOP - _BOTTOM) / 2) / total
    figure.text(0.12 / WIDTH, middle, name, rotation=90, ha="left", va="center", fontsize=TEXT_SIZE)
    if not as_lines:
        _entropy_bar(figure, total, min(3.0, total - _TOP - _BOTTOM))
    _legend(figure, total, max(layers, key=lambda each: len(each.heads)).heads if as_lines else ())
    return figure


def _tall(heads: int, columns: int) -> float:
    return min(4.0, max(1.2, heads * 0.16)) if columns == 1 else 1.5 if columns < 4 else 0.85


def _span(layers: Sequence[LayerEntropy]) -> tuple[int, int]:
    curves = [curve for each in layers for curve in each.curves if len(curve)]
    return min(int(each.steps.min()) for each in curves), max(int(each.steps.max()) for each in curves)


def _steps(axes: Axes, first: int, last: int, wide: float, labels: bool) -> None:
    room = (last - first) * 0.02 or 0.5
    axes.set_xlim(first - room, last + room)
    many = 7 if wide > 5 else 4 if wide > 2 else 2
    one = FixedLocator([first])
    axes.xaxis.set_major_locator(one if first == last else MaxNLocator(many, integer=True, steps=[1, 2, 5, 10]))
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
        drawn = fitted(curve, _FINEST)
        parted = np.flatnonzero(np.diff(drawn.attempts) != 0) + 1
        steps = np.insert(drawn.steps.astype(np.float64), parted, np.nan)
        values = np.insert(drawn.low, parted, np.nan)
        mark = "o" if len(drawn) <= _MARKED_UP_TO else None
        colour = _head_colour(head, layer.heads)
        axes.plot(steps, values, color=colour, linewidth=1.3, marker=mark, markersize=3, clip_on=False)


def _draw_rows(axes: Axes, layer: LayerEntropy, left: bool) -> None:
    """A row for each head, from the first at the top."""
    curves = [fitted(curve, _FINEST) for curve in layer.curves]
    steps = np.unique(np.concatenate([curve.steps for curve in curves])).astype(np.float64)
    cells = np.full((len(curves), len(steps)), np.nan)
    for row, curve in enumerate(curves):
        cells[row, np.searchsorted(steps, curve.steps)] = curve.low  # of a step that came again the later attempt
    low, high = axes.get_xlim()
    at = np.linspace(low, high, 2 * _FINEST)
    column = np.searchsorted((steps[1:] + steps[:-1]) / 2, at)
    colours = matplotlib.colormaps[_COLOURS](entropy_height(np.nan_to_num(cells)), bytes=True)[..., :3]
    with np.errstate(invalid="ignore"):
        colours[cells < COLLAPSED] = _bytes(BAD)
    colours[np.isnan(cells)] = _bytes(_NOT_MEASURED)
    count = len(curves)
    axes.imshow(colours[:, column], extent=(low, high, count - 0.5, -0.5), aspect="auto", interpolation="nearest")
    ticks = MaxNLocator(4, integer=True, steps=[1, 2, 4, 5, 8, 10], min_n_ticks=1).tick_values(0, max(1, count - 1))
    rows = [int(each) for each in ticks if 0 <= each < count]
    axes.set_yticks(rows, [str(layer.heads[each]) for each in rows])
    axes.tick_params(axis="y", labelleft=left, length=2 if left else 0, pad=2)


def _head_colour(head: int, heads: tuple[int, ...]) -> str:
    share = heads.index(head) / max(1, len(heads) - 1)
    return str(matplotlib.colors.to_hex(matplotlib.colormaps[_COLOURS](0.88 * share)))


def _entropy_bar(figure: Picture, total: float, tall: float) -> None:
    place = ((WIDTH - 0.66) / WIDTH, 1 - (_TOP + tall) / total, 0.13 / WIDTH, tall / total)
    bar = Colorbar(figure.add_axes(place), ScalarMappable(entropy_norm(), _COLOURS))
    entropy_ticks(bar.ax, tall)
    bar.ax.set_title("entropy", fontsize=SMALL_SIZE, loc="left", y=1.0, pad=7)
    bar.outline.set_visible(False)


def _legend(figure: Picture, total: float, heads: tuple[int, ...]) -> None:
    marks: list[Patch | Line2D] = [Line2D([], [], color=_head_colour(each, heads), linewidth=2) for each in heads]
    names = [f"head {each}" for each in heads]
    marks.append(Patch(facecolor=_ZONE if heads else BAD))
    names.append(f"collapsed: below {COLLAPSED}")
    figure.legend(
        marks,
        names,
        loc="upper left",
        bbox_to_anchor=(_LEFT / WIDTH - 0.01, 1 - 0.62 / total),
        ncols=len(names),
        fontsize=SMALL_SIZE,
        frameon=False,
        labelcolor=FAINT,
        borderaxespad=0.0,
        handlelength=1.2,
        columnspacing=1.1,
        handletextpad=0.4,
    )


def _bytes(colour: str) -> tuple[int, int, int]:
    red, green, blue = to_rgb(colour)
    return round(red * 255), round(green * 255), round(blue * 255)
