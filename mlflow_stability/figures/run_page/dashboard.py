"""Draws the health of a run on one page: what happened, loss, gradient norm, learning rate, update ratio.

In: a `DashboardData`. Out: a figure. Guarantees: a panel without data says so and takes no room from the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.gridspec import GridSpec

from mlflow_stability.figures.run_page.curve import Curve
from mlflow_stability.figures.run_page.dashboard_data import DashboardData
from mlflow_stability.figures.run_page.event_lane import draw_events, rows_of
from mlflow_stability.figures.run_page.mark import ROLLBACK, STEP_SKIPPED, Mark
from mlflow_stability.figures.run_page.series_chart import draw_series
from mlflow_stability.figures.run_page.zone import GRADIENT_NORM, UPDATE_RATIO, Zone
from mlflow_stability.figures.scale import step_axis
from mlflow_stability.figures.style import FAINT, SEVERITY, TURNED_BACK, Picture, entitle, new_figure, our_style
from mlflow_stability.vocabulary.result import Severity


@dataclass(frozen=True, slots=True)
class _Panel:
    name: str
    quantities: tuple[str, ...]
    height: float
    """Inches."""
    zones: tuple[Zone, ...] = ()


_PANELS = (
    _Panel("loss", ("loss", "val_loss"), 2.5),
    _Panel("gradient norm", ("grad_norm", "grad_norm_clipped"), 1.9, GRADIENT_NORM),
    _Panel("learning rate", ("learning_rate", "learning_rate_used"), 1.2),
    _Panel("update ratio", ("update_ratio",), 1.6, UPDATE_RATIO),
)
_EMPTY = 0.5
"""The height in inches of a panel without data."""
_ROW = 0.22
_TOP, _BOTTOM, _BETWEEN = 0.80, 0.55, 0.36
_LEFT, _RIGHT = 0.165, 0.885


def dashboard(board: DashboardData) -> Picture:
    """The page of a run."""
    with our_style():
        return _dashboard(board)


def _dashboard(board: DashboardData) -> Picture:
    marks = (*(mark for mark in board.marks if mark.kind != STEP_SKIPPED), *_skips(board))
    rows = rows_of(marks)
    panels = [(panel, [curve for each in panel.quantities for curve in board.of(each)]) for panel in _PANELS]
    heights = [max(1, len(rows)) * _ROW, *(panel.height if curves else _EMPTY for panel, curves in panels)]
    total = _TOP + sum(heights) + _BETWEEN * len(panels) + _BOTTOM
    figure = new_figure(total)
    entitle(figure, board.title, board.subtitle)
    grid = GridSpec(
        len(heights),
        1,
        figure,
        left=_LEFT,
        right=_RIGHT,
        top=1 - _TOP / total,
        bottom=_BOTTOM / total,
        height_ratios=heights,
        hspace=_BETWEEN / (sum(heights) / len(heights)),
    )
    first, last = _span(board.curves, marks)
    lane = figure.add_subplot(grid[0])
    step_axis(lane, first, last, labels=False)
    _draw_lane(lane, rows)
    for number, (panel, curves) in enumerate(panels, start=1):
        axes = figure.add_subplot(grid[number])
        step_axis(axes, first, last, labels=number == len(panels))
        draw_series(
            axes, curves, panel.name, panel.zones, sum(board.left_out.get(each, 0) for each in panel.quantities)
        )
        if curves:
            _draw_turns(axes, marks)
    return figure


def _draw_lane(axes: Axes, rows: list[tuple[str, list[Mark]]]) -> None:
    if rows:
        draw_events(axes, rows)
        return
    axes.set_axis_off()
    axes.text(0, 0.5, "no findings", transform=axes.transAxes, va="center", color=FAINT)


def _draw_turns(axes: Axes, marks: Iterable[Mark]) -> None:
    """Where the training was rolled back: from the step whose state it got to the step where it stood, in grey."""
    for mark in marks:
        if mark.kind == ROLLBACK:
            start = mark.start if mark.target is None else mark.target
            axes.axvspan(start, mark.end, color="#000000", alpha=0.07, linewidth=0, zorder=1)
            axes.axvline(mark.end, color=TURNED_BACK, linewidth=1.1, linestyle=(0, (4, 2)), zorder=2)
        elif mark.severity == Severity.CRITICAL:
            axes.axvspan(mark.start, mark.end, color=SEVERITY[mark.severity], alpha=0.15, linewidth=0.8, zorder=1)


def _skips(board: DashboardData) -> list[Mark]:
    """A mark for each rise of the count of skipped steps; the events themselves where nothing counted."""
    found = []
    for curve in board.of("skipped_steps"):
        before = np.r_[0.0, np.fmax.accumulate(np.nan_to_num(curve.high))[:-1]]
        rise = curve.high - before
        for place in np.flatnonzero(rise > 0):
            step, end = int(curve.steps[place]), int(curve.steps[place])
            found.append(Mark(STEP_SKIPPED, Severity.WARNING, step, end, round(float(rise[place]))))
    return found or [mark for mark in board.marks if mark.kind == STEP_SKIPPED]


def _span(curves: tuple[Curve, ...], marks: Iterable[Mark]) -> tuple[int, int]:
    steps = [int(each) for curve in curves if len(curve) for each in (curve.steps.min(), curve.steps.max())]
    steps += [each for mark in marks for each in (mark.start, mark.end)]
    return (min(steps), max(steps)) if steps else (0, 1)
