"""Draws where the heads of one layer look in two runs: side by side, their difference, and every head's entropy.

In: two maps, of the same layer or not. Out: a figure. Guarantees: both share one scale and the differences another; of
more heads than can be shown those are drawn that differ most; what only one of the two has is left out, and that is
said; layers that are called differently are both named.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator

from mlflow_stability.figures.attention.attention_cells import (
    COLLAPSED,
    Floats,
    about,
    painted,
    special_legend,
    weight_bar,
    weight_scale,
)
from mlflow_stability.figures.attention.attention_entropy import entropy_at, entropy_height, entropy_ticks
from mlflow_stability.figures.style import (
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
    shown,
)
from mlflow_stability.vocabulary.measured import UNNAMED_LAYER, AttentionMap

MOST_ROWS = 5
"""Rows of panels: the mean of all heads, and those heads that differ most."""
_LEFT, _TOP, _BOTTOM = 1.3, 1.12, 0.66
_PANEL, _GAP, _BAR = 2.1, 0.12, 0.85
"""The width of a panel, what is between two of one scale, and what a colour bar takes."""
_FLATTEST, _TALLEST = 0.5, 0.78
_ENTROPY, _ABOVE_ENTROPY = 1.5, 0.95
_DIFFERENCES = "PuOr_r"
_NAME = 22


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    one: Floats
    other: Floats

    @property
    def difference(self) -> Floats:
        with np.errstate(invalid="ignore"):
            return self.other - self.one


def attention_comparison(
    one: AttentionMap, other: AttentionMap, names: tuple[str, str], title: str = "", *, of_runs: bool = True
) -> Picture:
    """The picture of a layer of two runs; `title`: instead of the usual one, which moves below.

    `of_runs`: False where both are maps, or weights, of which no run is known: then the title has their names.
    """
    with our_style():
        return _attention_comparison(one, other, names, title, of_runs)


def _attention_comparison(
    one: AttentionMap, other: AttentionMap, names: tuple[str, str], given: str, of_runs: bool
) -> Picture:
    rows, left_out = _rows(one, other)
    tall = _PANEL * min(_TALLEST, max(_FLATTEST, rows[0].one.shape[0] / max(1, rows[0].one.shape[1])))
    down = len(rows) * (tall + _GAP) - _GAP
    total = _TOP + down + _ABOVE_ENTROPY + _ENTROPY + _BOTTOM
    figure = new_figure(total)
    layers = [each.layer or "the model" for each in (one, other)]
    alike = layers[0] == layers[1]
    title = f"Attention in {shown(layers[0], 44)} of two runs"
    if not of_runs:
        title = f"Attention of {shown(names[0], _NAME)} and {shown(names[1], _NAME)}"
    elif not alike:
        title = f"Attention in {shown(layers[0], 31)} and in {shown(layers[1], 31)}"
    steps = f"step {one.step:,}" if one.step == other.step else f"steps {one.step:,} and {other.step:,}"
    of_layer = [] if of_runs or not alike or layers[0] == UNNAMED_LAYER else [shown(layers[0], 31)]
    said = [*([] if alike else ["different layers"]), *of_layer, steps, *_about(one, other), *left_out]
    entitle(figure, given or title, " · ".join([title, *said] if given else said))
    weights = weight_scale(np.concatenate([each.reshape(-1) for row in rows for each in (row.one, row.other)]))
    apart = np.concatenate([row.difference.reshape(-1) for row in rows])
    reach = float(np.abs(apart[np.isfinite(apart)]).max(initial=0.0)) or 1.0
    differences = Normalize(-reach, reach)
    starts = (_LEFT, _LEFT + _PANEL + _GAP, _LEFT + 2 * _PANEL + _GAP + _BAR)
    heads = (shown(names[0], _NAME), shown(names[1], _NAME), "second − first")
    seen: set[str] = set()
    for number, row in enumerate(rows):
        bottom = total - _TOP - number * (tall + _GAP) - tall
        for column, (start, values) in enumerate(zip(starts, (row.one, row.other, row.difference), strict=True)):
            axes = figure.add_axes((start / WIDTH, bottom / total, _PANEL / WIDTH, tall / total))
            is_difference = column == 2
            scale, colours = (differences, _DIFFERENCES) if is_difference else (weights, "viridis")
            cells, special = painted(values, scale, one.causal and other.causal, colours)
            seen |= special
            axes.imshow(cells, aspect="auto", interpolation="nearest")
            _dress(axes, heads[column] if number == 0 else "", column == 0, number == len(rows) - 1)
        figure.text(0.012, (bottom + tall / 2) / total, row.name, ha="left", va="center", fontsize=SMALL_SIZE)
    middle = (total - _TOP - down / 2) / total
    figure.text(0.72 / WIDTH, middle, "query position", rotation=90, ha="left", va="center", fontsize=TEXT_SIZE)
    high = min(down, 2.6)
    beside = (total - _TOP - high) / total
    weight_bar(figure, ((starts[1] + _PANEL + 0.1) / WIDTH, beside, 0.13 / WIDTH, high / total), weights)
    _difference_bar(figure, ((starts[2] + _PANEL + 0.1) / WIDTH, beside, 0.13 / WIDTH, high / total), differences)
    frame = figure.add_axes((0, 0, 1, 1), frameon=False, xticks=[], yticks=[])
    special_legend(frame, seen, 0.988, 0.16 / total)
    place = (_LEFT / WIDTH, _BOTTOM / total, (WIDTH - _LEFT - 0.35) / WIDTH, _ENTROPY / total)
    _draw_entropy(figure.add_axes(place), one, other, names)
    return figure


def _about(one: AttentionMap, other: AttentionMap) -> list[str]:
    """Of which kind both are, and of how many tokens if of as many; else what both are cut to says enough."""
    (kind, tokens), (other_kind, other_tokens) = about(one)[:2], about(other)[:2]
    said = kind if kind == other_kind else f"{kind} and {other_kind}"
    return [said, tokens] if tokens == other_tokens else [said]


def _rows(one: AttentionMap, other: AttentionMap) -> tuple[list[_Row], list[str]]:
    """The rows, and what had to be left out of them."""
    queries, keys = (min(pair) for pair in zip(one.shape, other.shape, strict=True))
    shared = [head for head in one.heads if head in other.heads]

    def cut(attention: AttentionMap, head: int) -> Floats:
        return attention.weights[attention.heads.index(head), :queries, :keys].astype(np.float32)

    found = [_Row(f"head {head}", cut(one, head), cut(other, head)) for head in shared]
    ranked = sorted(found, key=lambda row: float(-np.nansum(np.abs(row.difference))))[: MOST_ROWS - 1]
    kept = [row for row in found if any(row is each for each in ranked)]
    said = []
    if len(kept) < len(found):
        said.append(f"the {len(kept)} heads that differ most")
    elif len(kept) < max(one.all_heads, other.all_heads):
        said.append(f"the {len(kept)} heads that both have")
    if one.shape != other.shape:
        said.append(f"cut to {queries} × {keys}")
    mean = _Row(
        "mean",
        one.average[:queries, :keys].astype(np.float32),
        other.average[:queries, :keys].astype(np.float32),
    )
    return [mean, *kept], said


def _dress(axes: Axes, name: str, left: bool, lowest: bool) -> None:
    axes.set_title(name, loc="left", fontsize=SMALL_SIZE, y=1.0, pad=4, fontweight="bold")
    for axis, labels in ((axes.xaxis, lowest), (axes.yaxis, left)):
        axis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
        axis.set_tick_params(length=2 if labels else 0, labelbottom=labels, labelleft=labels, pad=2)
    if lowest:
        axes.set_xlabel("key position", labelpad=2)


def _difference_bar(figure: Picture, place: tuple[float, float, float, float], scale: Normalize) -> None:
    bar = Colorbar(figure.add_axes(place), ScalarMappable(scale, _DIFFERENCES))
    bar.ax.yaxis.set_major_locator(MaxNLocator(5))
    bar.outline.set_visible(False)
    bar.ax.set_title("apart", fontsize=SMALL_SIZE, loc="left", y=1.0, pad=7)


def _draw_entropy(axes: Axes, one: AttentionMap, other: AttentionMap, names: tuple[str, str]) -> None:
    """A point for each head of each run, and a line from one to the other."""
    both = min(one.all_heads, other.all_heads)
    axes.axhspan(0.0, COLLAPSED, color="#fbe4d8", linewidth=0, zorder=0)
    axes.vlines(np.arange(both), one.entropy[:both], other.entropy[:both], color=GRID, linewidth=2, zorder=1)
    for attention, name, colour, mark in zip((one, other), names, LINES, ("o", "D"), strict=False):
        heads = np.arange(attention.all_heads)
        axes.plot(
            heads,
            attention.entropy,
            linestyle="none",
            marker=mark,
            markersize=5 if mark == "o" else 8,
            markerfacecolor=colour if mark == "o" else "none",  # so that a point behind it is seen
            color=colour,
            label=shown(name, _NAME),
            clip_on=False,
        )
    most = max(one.all_heads, other.all_heads)
    axes.set_xlim(-0.6, most - 0.4)
    axes.set_yscale("function", functions=(entropy_height, entropy_at))
    axes.set_ylim(0.0, 1.0)
    entropy_ticks(axes, _ENTROPY)
    axes.xaxis.set_major_locator(MaxNLocator(17, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    axes.set_xlabel("head", labelpad=2)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(f"entropy of each head (below {COLLAPSED}: collapsed)", loc="left", fontsize=TEXT_SIZE, y=1.0, pad=5)
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=2,
        fontsize=SMALL_SIZE,
        frameon=False,
        labelcolor=FAINT,
        borderaxespad=0.0,
        handletextpad=0.2,
    )
