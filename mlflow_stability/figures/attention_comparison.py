"""Draw the attention of one layer in two runs: side by side, their difference, and every head's entropy.

Both share one scale and the differences another. Of more heads than fit, those are drawn that differ most.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator

from mlflow_stability.figures.attention_entropy import entropy_at, entropy_height, entropy_ticks
from mlflow_stability.figures.attention_heatmap import (
    COLLAPSED,
    Floats,
    about,
    painted,
    special_legend,
    weight_bar,
    weight_scale,
)
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
from mlflow_stability.vocabulary.measured.layer_arrays import UNNAMED_LAYER, AttentionMap

MAX_ROWS = 5  # rows of panels: the mean of all heads, and those heads that differ most
_LEFT, _TOP, _BOTTOM = 1.3, 1.12, 0.66
_PANEL, _GAP, _BAR = 2.1, 0.12, 0.85  # widths of a panel, the gap between two of one scale, and a colour bar
_MIN_ASPECT, _MAX_ASPECT = 0.5, 0.78
_ENTROPY, _ABOVE_ENTROPY = 1.5, 0.95
_DIFFERENCES = "PuOr_r"
_NAME = 22


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    first: Floats
    second: Floats

    @property
    def difference(self) -> Floats:
        with np.errstate(invalid="ignore"):
            return self.second - self.first


@our_style()
def attention_comparison(
    first: AttentionMap, second: AttentionMap, names: tuple[str, str], title: str = "", *, of_runs: bool = True
) -> Picture:
    """Draw a layer of two runs; `title` replaces the default one, which moves below.

    Without `of_runs`, both are maps or weights of unknown runs, and the default title has their names.
    """
    rows, left_out = _rows(first, second)
    tall = _PANEL * min(_MAX_ASPECT, max(_MIN_ASPECT, rows[0].first.shape[0] / max(1, rows[0].first.shape[1])))
    down = len(rows) * (tall + _GAP) - _GAP
    total = _TOP + down + _ABOVE_ENTROPY + _ENTROPY + _BOTTOM
    figure = new_figure(total)
    layers = [attention.layer or "the model" for attention in (first, second)]
    same_layer = layers[0] == layers[1]
    default = f"Attention in {shown(layers[0], 44)} of two runs"
    if not of_runs:
        default = f"Attention of {shown(names[0], _NAME)} and {shown(names[1], _NAME)}"
    elif not same_layer:
        default = f"Attention in {shown(layers[0], 31)} and in {shown(layers[1], 31)}"
    steps = f"step {first.step:,}" if first.step == second.step else f"steps {first.step:,} and {second.step:,}"
    of_layer = [] if of_runs or not same_layer or layers[0] == UNNAMED_LAYER else [shown(layers[0], 31)]
    facts = [*([] if same_layer else ["different layers"]), *of_layer, steps, *_about(first, second), *left_out]
    entitle(figure, title or default, " · ".join([default, *facts] if title else facts))
    weights = weight_scale(np.concatenate([cells.reshape(-1) for row in rows for cells in (row.first, row.second)]))
    gaps = np.concatenate([row.difference.reshape(-1) for row in rows])
    reach = float(np.abs(gaps[np.isfinite(gaps)]).max(initial=0.0)) or 1.0
    differences = Normalize(-reach, reach)
    starts = (_LEFT, _LEFT + _PANEL + _GAP, _LEFT + 2 * _PANEL + _GAP + _BAR)
    heads = (shown(names[0], _NAME), shown(names[1], _NAME), "second − first")
    special: set[str] = set()
    for number, row in enumerate(rows):
        bottom = total - _TOP - number * (tall + _GAP) - tall
        for column, (start, values) in enumerate(zip(starts, (row.first, row.second, row.difference), strict=True)):
            axes = figure.add_axes((start / WIDTH, bottom / total, _PANEL / WIDTH, tall / total))
            is_difference = column == 2
            scale, colours = (differences, _DIFFERENCES) if is_difference else (weights, "viridis")
            cells, special_names = painted(values, scale, first.causal and second.causal, colours)
            special |= special_names
            axes.imshow(cells, aspect="auto", interpolation="nearest")
            _dress(axes, heads[column] if number == 0 else "", column == 0, number == len(rows) - 1)
        figure.text(0.012, (bottom + tall / 2) / total, row.name, ha="left", va="center", fontsize=SMALL_SIZE)
    middle = (total - _TOP - down / 2) / total
    figure.text(0.72 / WIDTH, middle, "query position", rotation=90, ha="left", va="center", fontsize=TEXT_SIZE)
    high = min(down, 2.6)
    beside = (total - _TOP - high) / total
    weight_bar(figure, ((starts[1] + _PANEL + 0.1) / WIDTH, beside, 0.13 / WIDTH, high / total), weights)
    bar = Colorbar(
        figure.add_axes(((starts[2] + _PANEL + 0.1) / WIDTH, beside, 0.13 / WIDTH, high / total)),
        ScalarMappable(differences, _DIFFERENCES),
    )
    bar.ax.yaxis.set_major_locator(MaxNLocator(5))
    bar.outline.set_visible(False)
    bar.ax.set_title("apart", fontsize=SMALL_SIZE, loc="left", y=1.0, pad=7)
    frame = figure.add_axes((0, 0, 1, 1), frameon=False, xticks=[], yticks=[])
    special_legend(frame, special, 0.988, 0.16 / total)
    place = (_LEFT / WIDTH, _BOTTOM / total, (WIDTH - _LEFT - 0.35) / WIDTH, _ENTROPY / total)
    _draw_entropy(figure.add_axes(place), first, second, names)
    return figure


def _about(first: AttentionMap, second: AttentionMap) -> list[str]:
    """The kinds of both, and their tokens where these are the same."""
    (kind, tokens), (other_kind, other_tokens) = about(first)[:2], about(second)[:2]
    kinds = kind if kind == other_kind else f"{kind} and {other_kind}"
    return [kinds, tokens] if tokens == other_tokens else [kinds]


def _rows(first: AttentionMap, second: AttentionMap) -> tuple[list[_Row], list[str]]:
    """The rows, and facts about what they leave out."""
    queries, keys = (min(pair) for pair in zip(first.shape, second.shape, strict=True))
    shared = [head for head in first.heads if head in second.heads]

    def cut(attention: AttentionMap, head: int) -> Floats:
        return attention.weights[attention.heads.index(head), :queries, :keys].astype(np.float32)

    rows = [_Row(f"head {head}", cut(first, head), cut(second, head)) for head in shared]
    gaps = [float(np.nansum(np.abs(row.difference))) for row in rows]
    ranked = sorted(range(len(rows)), key=lambda place: -gaps[place])
    kept = [rows[place] for place in sorted(ranked[: MAX_ROWS - 1])]
    facts = []
    if len(kept) < len(rows):
        facts.append(f"the {len(kept)} heads that differ most")
    elif len(kept) < max(first.all_heads, second.all_heads):
        facts.append(f"the {len(kept)} heads that both have")
    if first.shape != second.shape:
        facts.append(f"cut to {queries} × {keys}")
    means = [attention.average[:queries, :keys].astype(np.float32) for attention in (first, second)]
    return [_Row("mean", *means), *kept], facts


def _dress(axes: Axes, name: str, left: bool, lowest: bool) -> None:
    axes.set_title(name, loc="left", fontsize=SMALL_SIZE, y=1.0, pad=4, fontweight="bold")
    for axis, labels in ((axes.xaxis, lowest), (axes.yaxis, left)):
        axis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
        axis.set_tick_params(length=2 if labels else 0, labelbottom=labels, labelleft=labels, pad=2)
    if lowest:
        axes.set_xlabel("key position", labelpad=2)


def _draw_entropy(axes: Axes, first: AttentionMap, second: AttentionMap, names: tuple[str, str]) -> None:
    """A point for each head of each run, and a line from one to the other."""
    both = min(first.all_heads, second.all_heads)
    axes.axhspan(0.0, COLLAPSED, color="#fbe4d8", linewidth=0, zorder=0)
    axes.vlines(np.arange(both), first.entropy[:both], second.entropy[:both], color=GRID, linewidth=2, zorder=1)
    for attention, name, colour, mark in zip((first, second), names, LINES, ("o", "D"), strict=False):
        heads = np.arange(attention.all_heads)
        axes.plot(
            heads,
            attention.entropy,
            linestyle="none",
            marker=mark,
            markersize=5 if mark == "o" else 8,
            markerfacecolor=colour if mark == "o" else "none",  # so that a point behind it is visible
            color=colour,
            label=shown(name, _NAME),
            clip_on=False,
        )
    axes.set_xlim(-0.6, max(first.all_heads, second.all_heads) - 0.4)
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
