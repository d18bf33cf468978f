"""Draw the health of a run on one page: events, loss, gradient norm, learning rate, update ratio."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.gridspec import GridSpec
from matplotlib.lines import Line2D
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from mlflow_stability.figures.curve import Curve, fitted
from mlflow_stability.figures.dashboard_data import (
    GRADIENT_NORM,
    MAX_CURVES,
    ROLLBACK,
    STEP_SKIPPED,
    UPDATE_RATIO,
    DashboardData,
    Mark,
    Zone,
    grouped,
)
from mlflow_stability.figures.style import (
    BAD,
    FAINT,
    GRID,
    LINES,
    SEVERITY,
    SMALL_SIZE,
    TEXT_SIZE,
    TURNED_BACK,
    Picture,
    add_legend,
    apply,
    entitle,
    new_figure,
    number_text,
    our_style,
    say_instead,
    scale_of,
    shown,
    step_axis,
)
from mlflow_stability.vocabulary.result import Severity


@dataclass(frozen=True, slots=True)
class _Panel:
    name: str
    quantities: tuple[str, ...]
    height: float  # inches
    zones: tuple[Zone, ...] = ()


_PANELS = (
    _Panel("loss", ("loss", "val_loss"), 2.5),
    _Panel("gradient norm", ("grad_norm", "grad_norm_clipped"), 1.9, GRADIENT_NORM),
    _Panel("learning rate", ("learning_rate", "learning_rate_used"), 1.2),
    _Panel("update ratio", ("update_ratio",), 1.6, UPDATE_RATIO),
)
MAX_ROWS = 6  # rows of events
_MIN_BAR_SHARE = 0.004  # the share of the width that a bar takes at least
_EMPTY = 0.5  # the height in inches of a panel without data
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


MAX_STRETCHES = 1200  # stretches of a line: about the pixels of its width
_NOISY_POINTS = 150  # from this many points on, the median is drawn over a line
_WITHOUT_NOISE = frozenset({"learning_rate", "learning_rate_used"})  # quantities whose jumps the script makes
_MERGED_SHARE = 0.05  # the share of the width below which non-finite values are counted together
_MIN_NAMED_LINES = 2
_LEGEND_LETTERS, _HANDLE_LETTERS, _MIN_LETTERS = 78, 6, 5
"""The room for the names of all lines, the part of it for the mark of a line, and the least for a name."""
_ZONE_CHARACTERS = 14  # characters that fit beside a panel

Floats = NDArray[np.float64]


def draw_series(axes: Axes, curves: list[Curve], name: str, zones: tuple[Zone, ...] = (), left_out: int = 0) -> None:
    """Draw curves into axes whose horizontal limits are set; `left_out` is the number of other curves.

    Every non-finite value is a cross at the upper edge, with the count. Lines have gaps at rollbacks and at non-finite
    values. Detail finer than a pixel is drawn as its range; noisy curves have their median as a darker line.
    """
    axes.set_title(name, loc="left", fontsize=TEXT_SIZE, y=1.0, pad=5)  # a given y avoids measuring all labels
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    shown_curves, left_out = curves[:MAX_CURVES], left_out + max(0, len(curves) - MAX_CURVES)
    if not shown_curves:
        _say(axes, "not measured")
        return
    drawn = [fitted(curve, MAX_STRETCHES) for curve in shown_curves]
    scale = scale_of(np.concatenate([np.r_[curve.low, curve.high] for curve in drawn]), never_negative=bool(zones))
    if scale is None:
        _say(axes, "no finite value")
    else:
        apply(axes, scale)
        if zones and scale.logarithmic:
            _draw_zones(axes, zones)
        pairs = list(zip(drawn, LINES, strict=False))
        # Where nothing was clipped both norms are equal; the unclipped norm is drawn on top.
        for curve, colour in sorted(pairs, key=lambda pair: pair[0].signal.quantity != "grad_norm_clipped"):
            _draw_line(axes, curve, colour)
        if scale.cut is not None:
            _note(axes, 0.99, f"▲ up to {number_text(scale.cut)}", "right")
    _mark_nonfinite(axes, shown_curves)
    if len(shown_curves) >= _MIN_NAMED_LINES:
        _name_lines(axes, shown_curves, left_out)


def _draw_zones(axes: Axes, zones: tuple[Zone, ...]) -> None:
    """Draw zones as tinted bands on a logarithmic scale, with their names to the right."""
    bottom, top = axes.get_ylim()
    height = math.log(top) - math.log(bottom)
    inches = axes.bbox.height / axes.figure.dpi
    for zone in zones:
        low, high = max(zone.low, bottom), min(zone.high, top)
        if low >= high:
            continue
        axes.axhspan(low, high, color=zone.tint, linewidth=0, zorder=0)
        share = (math.log(high) - math.log(low)) / height
        lines = share * inches / 0.16
        if lines < 1:
            continue
        line = f"{zone.name} {zone.limits}"
        text = f"{zone.name}\n{zone.limits}" if lines >= 2 else line if len(line) <= _ZONE_CHARACTERS else zone.name
        axes.text(
            1.008,
            ((math.log(low) + math.log(high)) / 2 - math.log(bottom)) / height,
            text,
            transform=axes.transAxes,
            ha="left",
            va="center",
            color=FAINT,
            fontsize=SMALL_SIZE,
            linespacing=1.1,
        )


def _say(axes: Axes, text: str) -> None:
    axes.set_yticks([])
    axes.grid(visible=False)
    say_instead(axes, text)


def _draw_line(axes: Axes, curve: Curve, colour: str) -> None:
    is_noisy = len(curve) >= _NOISY_POINTS and curve.signal.quantity not in _WITHOUT_NOISE
    steps, low, high = curve.steps.astype(np.float64), curve.low, curve.high
    across, values = np.repeat(steps, 2), np.stack([low, high], axis=1).reshape(-1)
    if np.array_equal(low, high, equal_nan=True):
        across, values = steps, low
    parted = np.flatnonzero(np.diff(curve.attempts) != 0) + 1
    per_step = len(across) // len(steps)
    red, green, blue = to_rgb(colour)
    pale = (0.45 * red + 0.55, 0.45 * green + 0.55, 0.45 * blue + 0.55) if is_noisy else colour
    middles = (low + high) / 2
    finite = np.isfinite(middles)
    linked = finite[1:] & finite[:-1] & (np.diff(curve.attempts) == 0)
    lone = finite & ~np.r_[False, linked] & ~np.r_[linked, False]  # no line reaches them
    axes.plot(*_with_gaps(across, values, parted * per_step), color=pale, linewidth=1.0 if is_noisy else 1.6, zorder=2)
    axes.plot(steps[lone], middles[lone], linestyle="none", marker="o", markersize=4, color=colour, zorder=3)
    if is_noisy:
        axes.plot(*_with_gaps(steps, _running_median(curve), parted), color=colour, linewidth=1.6, zorder=3)


def _with_gaps(steps: Floats, values: Floats, parted: NDArray[np.int64]) -> tuple[Floats, Floats]:
    return np.insert(steps, parted, steps[parted]), np.insert(values, parted, np.nan)


def _running_median(curve: Curve) -> Floats:
    """The running median within each attempt, over a sixtieth of the width."""
    median = np.full(len(curve), np.nan)
    reach = max(2, len(curve) // 120)
    for attempt in np.unique(curve.attempts):
        here = np.flatnonzero((curve.attempts == attempt) & np.isfinite(curve.mean))
        if len(here):
            padded = np.pad(curve.mean[here], min(reach, len(here) - 1), mode="reflect")
            median[here] = np.median(sliding_window_view(padded, 2 * min(reach, len(here) - 1) + 1), axis=1)
    return median


def _mark_nonfinite(axes: Axes, curves: list[Curve]) -> None:
    """Draw crosses at the upper edge; those close together are one cross with their count."""
    left, right = axes.get_xlim()
    steps = np.concatenate([curve.steps[curve.nonfinite > 0] for curve in curves])
    counts = np.concatenate([curve.nonfinite[curve.nonfinite > 0] for curve in curves])
    if not len(steps):
        return
    order = np.argsort(steps, kind="stable")
    steps, counts = steps[order], counts[order]
    starts = np.flatnonzero(np.r_[True, np.diff(steps) > (right - left) * _MERGED_SHARE])
    ends = np.r_[starts[1:] - 1, len(steps) - 1]
    edge = axes.get_xaxis_transform()
    for begin, end, count in zip(steps[starts], steps[ends], np.add.reduceat(counts, starts), strict=True):
        axes.plot([begin, end], [0.985, 0.985], transform=edge, color=BAD, linewidth=3, zorder=4, clip_on=False)
        axes.plot(begin, 0.985, transform=edge, color=BAD, marker="x", markersize=6, markeredgewidth=1.8, zorder=4)
        place = (begin - left) / (right - left)
        side = "left" if place < 0.85 else "right"
        text = f"× {count:,} not finite"
        _note(axes, place + (0.006 if side == "left" else -0.006), text, side)


def _note(axes: Axes, across: float, text: str, side: str) -> None:
    axes.text(
        across,
        0.94,
        text,
        transform=axes.transAxes,
        ha="left" if side == "left" else "right",
        va="top",
        color=BAD,
        fontsize=SMALL_SIZE,
        bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.0},
        zorder=5,
    )


def _names_of(curves: list[Curve], longest: int) -> list[str]:
    """Places, or quantities where these differ; names that are equal when cut to their length are numbered."""
    first = curves[0].signal.quantity
    names: list[str] = []
    for curve in curves:
        quantity, place = curve.signal.quantity, curve.signal.place
        name = whole = f"{quantity} {place}" if place and quantity != first else place or quantity
        number = 1
        while shown(name, longest) in names:
            number += 1
            name = f"{whole} {number}"
        names.append(shown(name, longest))
    return names


def _name_lines(axes: Axes, curves: list[Curve], left_out: int) -> None:
    longest = max(_MIN_LETTERS, _LEGEND_LETTERS // (len(curves) + (left_out > 0)) - _HANDLE_LETTERS)
    marks = {
        name: Line2D([], [], color=colour, linewidth=2)
        for name, colour in zip(_names_of(curves, longest), LINES, strict=False)
    }
    if left_out > 0:
        marks[f"and {left_out} more"] = Line2D([], [], linestyle="none")
    place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.02), "ncols": len(LINES) + 1}
    add_legend(axes, marks, **place, borderpad=0.1, handlelength=1.2, columnspacing=1.2)
