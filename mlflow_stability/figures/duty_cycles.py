"""Draw how often the bits of sparse codes are on, over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter
from numpy.typing import NDArray

from mlflow_stability.figures.layer_grid import LayerGrid
from mlflow_stability.figures.style import (
    BAD,
    GRID,
    INK,
    LINES,
    SMALL_SIZE,
    WIDTH,
    Picture,
    add_legend,
    entitle,
    new_figure,
    number_text,
    our_style,
    shown,
    step_axis,
)
from mlflow_stability.vocabulary.text.phrases import counted

MAX_MODULES = 6
_TICKS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
_LEFT, _RIGHT, _TOP, _BOTTOM, _TALL, _BETWEEN = 0.8, 0.3, 1.25, 0.6, 1.9, 0.42

Floats = NDArray[np.float64]


@our_style()
def duty_cycles(grids: Sequence[LayerGrid], subtitle: str = "") -> Picture:
    """Draw a panel for each module, or some of many: percentiles and maximum of duty cycles, and the active bits."""
    by_name = {grid.quantity.removeprefix("sdr_"): grid for grid in grids}
    modules = by_name["duty_p50"].layers
    count = min(len(modules), MAX_MODULES)
    drawn = [modules[round(place * (len(modules) - 1) / max(1, count - 1))] for place in range(count)]
    total = _TOP + len(drawn) * (_TALL + _BETWEEN) - _BETWEEN + _BOTTOM
    figure = new_figure(total)
    where = counted(len(modules), "module") + (f", {len(drawn)} drawn" if len(modules) > len(drawn) else "")
    entitle(figure, "Duty cycles", f"{where} · share of the codes in which a bit is on, scale stretched to 0", subtitle)
    steps = by_name["duty_p50"].steps
    for number, module in enumerate(drawn):
        bottom = total - _TOP - number * (_TALL + _BETWEEN) - _TALL
        axes = figure.add_axes((_LEFT / WIDTH, bottom / total, (WIDTH - _LEFT - _RIGHT) / WIDTH, _TALL / total))
        step_axis(axes, int(steps[0]), max(by_name["duty_p50"].last, int(steps[-1])), labels=number == len(drawn) - 1)
        axes.set_title(shown(module, 90), loc="left", fontsize=SMALL_SIZE, pad=4)
        _draw(axes, {name: _values_at(grid, module, steps) for name, grid in by_name.items()}, steps.astype(np.float64))
    _legend(figure, total)
    return figure


def _values_at(grid: LayerGrid, module: str, steps: NDArray[np.int64]) -> Floats:
    """The values of one module at these steps; NaN where a step was not measured."""
    values = np.full(len(steps), np.nan)
    if module in grid.layers:
        _, here, there = np.intersect1d(steps, grid.steps, return_indices=True)
        values[here] = grid.values[grid.layers.index(module)][there]
    return values


def _draw(axes: Axes, values: Mapping[str, Floats], steps: Floats) -> None:
    measured = np.isfinite(values["duty_p50"])
    at = steps[measured]
    cut = {name: column[measured] for name, column in values.items()}
    axes.set_yscale("function", functions=(_root, np.square))
    highest = float(np.nanmax(cut["duty_max"], initial=0.0))
    axes.set_ylim(0.0, min(1.0, max(0.1, highest * 1.15)))
    axes.yaxis.set_major_locator(FixedLocator([tick for tick in _TICKS if tick <= axes.get_ylim()[1]]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    axes.minorticks_off()
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.fill_between(at, cut["duty_p5"], cut["duty_p95"], color=LINES[4], alpha=0.3, linewidth=0)
    axes.fill_between(at, cut["duty_p25"], cut["duty_p75"], color=LINES[0], alpha=0.35, linewidth=0)
    mark = "o" if len(at) <= 40 else None
    axes.plot(at, cut["duty_p50"], color=LINES[0], linewidth=1.6, marker=mark, markersize=3)
    axes.plot(at, cut["duty_max"], color=BAD, linewidth=1.0, marker=mark, markersize=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        axes.plot(at, cut["active_bits"] / cut["width"], color=INK, linewidth=1.0, linestyle=(0, (4, 3)))


def _root(values: Floats) -> Floats:
    return np.sqrt(np.clip(values, 0.0, None))


def _legend(figure: Picture, total: float) -> None:
    marks: dict[str, Line2D | Patch] = {
        "median bit": Line2D([], [], color=LINES[0], linewidth=1.6),
        "middle half of the bits": Patch(facecolor=LINES[0], alpha=0.35),
        "5 % to 95 %": Patch(facecolor=LINES[4], alpha=0.3),
        "most used bit": Line2D([], [], color=BAD, linewidth=1.0),
        "all bits used alike": Line2D([], [], color=INK, linewidth=1.0, linestyle=(0, (4, 3))),
    }
    place = (0.008, 1 - 0.68 / total)
    add_legend(
        figure, marks, loc="upper left", bbox_to_anchor=place, ncols=len(marks), handlelength=1.4, columnspacing=1.3
    )
