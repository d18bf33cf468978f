"""Draw the health of a run on one page: events, loss, gradient norm, learning rate, update ratio."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.gridspec import GridSpec

from mlflow_stability.figures.run_page.curve import Curve
from mlflow_stability.figures.run_page.dashboard_data import (
    GRADIENT_NORM,
    ROLLBACK,
    STEP_SKIPPED,
    UPDATE_RATIO,
    DashboardData,
    Mark,
    Zone,
    grouped,
)
from mlflow_stability.figures.run_page.series_chart import draw_series
from mlflow_stability.figures.scale import step_axis
from mlflow_stability.figures.style import (
    FAINT,
    GRID,
    SEVERITY,
    SMALL_SIZE,
    TURNED_BACK,
    Picture,
    entitle,
    new_figure,
    our_style,
    shown,
)
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
MAX_ROWS = 6
"""Rows of events."""
_MIN_BAR_SHARE = 0.004
"""The share of the width that a bar takes at least."""
_EMPTY = 0.5
"""The height in inches of a panel without data."""
_ROW = 0.22
_TOP, _BOTTOM, _BETWEEN = 0.80, 0.55, 0.36
_LEFT, _RIGHT = 0.165, 0.885


@our_style()
def dashboard(board: DashboardData) -> Picture:
    """Draw the page of a run; a panel without data takes little room and says so."""
    marks = (*(mark for mark in board.marks if mark.kind != STEP_SKIPPED), *_skips(board))
    rows = rows_of(marks)
    panels = [(panel, [curve for quantity in panel.quantities for curve in board.of(quantity)]) for panel in _PANELS]
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
    _draw_events(lane, rows)
    for number, (panel, curves) in enumerate(panels, start=1):
        axes = figure.add_subplot(grid[number])
        step_axis(axes, first, last, labels=number == len(panels))
        left_out = sum(board.left_out.get(quantity, 0) for quantity in panel.quantities)
        draw_series(axes, curves, panel.name, panel.zones, left_out)
        if curves:
            _draw_rollbacks(axes, marks)
    return figure


def rows_of(marks: tuple[Mark, ...]) -> list[tuple[str, list[Mark]]]:
    """Return a row for each kind, rollbacks first and then the worst; kinds beyond `MAX_ROWS` share the last row."""
    kinds: dict[str, list[Mark]] = {}
    for mark in marks:
        kinds.setdefault(mark.kind, []).append(mark)
    ranked = sorted(kinds.items(), key=lambda row: (row[0] != ROLLBACK, -max(mark.severity for mark in row[1])))
    if len(ranked) <= MAX_ROWS:
        return ranked
    rest = [mark for _, marks in ranked[MAX_ROWS - 1 :] for mark in marks]
    return [*ranked[: MAX_ROWS - 1], (f"{len(ranked) - MAX_ROWS + 1} other types", rest)]


def _draw_events(axes: Axes, rows: list[tuple[str, list[Mark]]]) -> None:
    """Draw a bar for each range of steps, and the count of each kind beside its row."""
    if not rows:
        axes.set_axis_off()
        axes.text(0, 0.5, "no findings", transform=axes.transAxes, va="center", color=FAINT)
        return
    left, right = axes.get_xlim()
    min_width = (right - left) * _MIN_BAR_SHARE
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [shown(kind.replace("_", " "), 23) for kind, _ in rows])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    for number, (_, marks) in enumerate(rows):
        for mark in grouped(marks, int(min_width)):
            width = max(min_width, mark.end - mark.start)
            colour = TURNED_BACK if mark.kind == ROLLBACK else SEVERITY[mark.severity]
            axes.barh(number, width, left=mark.start - min_width / 2, height=0.6, color=colour, zorder=3)
        count = sum(mark.count for mark in marks)
        axes.text(
            1.008, number, f"{count:,} ×", transform=axes.get_yaxis_transform(), va="center", color=FAINT,
            fontsize=SMALL_SIZE,
        )  # fmt: skip


def _draw_rollbacks(axes: Axes, marks: Iterable[Mark]) -> None:
    """Shade the steps that a rollback discarded, and those of critical findings."""
    for mark in marks:
        if mark.kind == ROLLBACK:
            start = mark.start if mark.target is None else mark.target
            axes.axvspan(start, mark.end, color="#000000", alpha=0.07, linewidth=0, zorder=1)
            axes.axvline(mark.end, color=TURNED_BACK, linewidth=1.1, linestyle=(0, (4, 2)), zorder=2)
        elif mark.severity == Severity.CRITICAL:
            axes.axvspan(mark.start, mark.end, color=SEVERITY[mark.severity], alpha=0.15, linewidth=0.8, zorder=1)


def _skips(board: DashboardData) -> list[Mark]:
    """A mark for each rise of the count of skipped steps; the events themselves where there is no count."""
    marks = []
    for curve in board.of("skipped_steps"):
        before = np.r_[0.0, np.fmax.accumulate(np.nan_to_num(curve.high))[:-1]]
        rise = curve.high - before
        for place in np.flatnonzero(rise > 0):
            step = int(curve.steps[place])
            marks.append(Mark(STEP_SKIPPED, Severity.WARNING, step, step, round(float(rise[place]))))
    return marks or [mark for mark in board.marks if mark.kind == STEP_SKIPPED]


def _span(curves: tuple[Curve, ...], marks: Iterable[Mark]) -> tuple[int, int]:
    steps = [int(end) for curve in curves if len(curve) for end in (curve.steps.min(), curve.steps.max())]
    steps += [end for mark in marks for end in (mark.start, mark.end)]
    return (min(steps), max(steps)) if steps else (0, 1)
