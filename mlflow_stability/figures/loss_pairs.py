"""Draw pairs of losses side by side: of a failure and of its healthy twin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mlflow_stability.figures.style import (
    BAD,
    FAINT,
    GRID,
    LINES,
    SMALL_SIZE,
    WIDTH,
    Picture,
    add_legend,
    entitle,
    new_figure,
    our_style,
    shown,
)

MAX_COLUMNS = 3
_TOP, _BOTTOM, _TALL, _ABOVE = 1.45, 0.55, 1.9, 0.75
_LEFT, _RIGHT, _GAP = 0.75, 0.3, 0.6


@dataclass(frozen=True, slots=True)
class LossPair:
    name: str
    conclusion: str  # the findings, in a few words
    healthy: tuple[float, ...]
    failure: tuple[float, ...]
    found_at: int | None


@our_style()
def loss_pairs(pairs: Sequence[LossPair], title: str) -> Picture:
    """Draw a panel for each pair; a loss that is not finite is a gap."""
    columns = min(MAX_COLUMNS, len(pairs))
    rows = -(-len(pairs) // columns)
    total = _TOP + rows * (_TALL + _ABOVE) - _ABOVE + _BOTTOM
    wide = (WIDTH - _LEFT - _RIGHT - (columns - 1) * _GAP) / columns
    figure = new_figure(total)
    entitle(figure, title, "loss by step; scale logarithmic where all losses are above zero")
    for number, pair in enumerate(pairs):
        row, column = divmod(number, columns)
        left, bottom = _LEFT + column * (wide + _GAP), total - _TOP - row * (_TALL + _ABOVE) - _TALL
        axes = figure.add_axes((left / WIDTH, bottom / total, wide / WIDTH, _TALL / total))
        _draw(axes, pair, int(wide / 0.08))
    lines = {
        "healthy twin": Line2D([], [], color=LINES[0]),
        "failure": Line2D([], [], color=BAD),
        "first finding": Line2D([], [], color=FAINT, linestyle=":"),
    }
    place = (_LEFT / WIDTH - 0.01, 1 - 0.6 / total)
    add_legend(figure, lines, loc="upper left", bbox_to_anchor=place, ncols=3, borderaxespad=None)
    return figure


def _draw(axes: Axes, pair: LossPair, letters: int) -> None:
    healthy, failure = np.asarray(pair.healthy, np.float64), np.asarray(pair.failure, np.float64)
    for losses, colour in ((healthy, LINES[0]), (failure, BAD)):
        axes.plot(
            np.arange(1, len(losses) + 1), np.where(np.isfinite(losses), losses, np.nan), color=colour, linewidth=1
        )
    together = np.concatenate([healthy, failure])
    if (together[np.isfinite(together)] > 0).all():
        axes.set_yscale("log")
    if pair.found_at is not None:
        axes.axvline(pair.found_at, color=FAINT, linestyle=":", linewidth=1.2)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.tick_params(labelsize=SMALL_SIZE)
    axes.set_title(shown(pair.name, letters), loc="left", fontsize=SMALL_SIZE + 1, pad=17)
    axes.text(0, 1.03, shown(pair.conclusion, letters), transform=axes.transAxes, fontsize=SMALL_SIZE, color=FAINT)
