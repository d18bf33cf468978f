"""Draws the curves of one quantity over the steps.

In: curves. Out: a panel. Guarantees: every value that is not finite shows as a cross at the upper edge, with how many
there are; lines are parted where the training was rolled back and where values are missing because they are not finite;
what is finer than a pixel is drawn as the range it covers, with the usual value of what is noisy as a darker line in
it. No two lines have the same name.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from mlflow_stability.figures.run_page.curve import Curve, fitted
from mlflow_stability.figures.run_page.dashboard_data import MOST_CURVES
from mlflow_stability.figures.run_page.zone import Zone
from mlflow_stability.figures.run_page.zone_bands import draw_zones
from mlflow_stability.figures.scale import apply, number_text, scale_of
from mlflow_stability.figures.style import BAD, FAINT, GRID, LINES, SMALL_SIZE, TEXT_SIZE, say_instead, shown

PIXELS = 1200
"""Stretches that a line is drawn of at most: about the pixels of its width."""
_NOISY_FROM = 150
"""Points from which on a line gets its usual value drawn over it."""
_SET_BY_THE_SCRIPT = frozenset({"learning_rate", "learning_rate_used"})
"""What has no noise: each of its jumps is meant, and none is to be smoothed away."""
_APART = 0.05
"""The share of the width below which non-finite values are counted together."""
_LEGEND_FROM = 2
_LEGEND_LETTERS, _HANDLE_LETTERS, _SHORTEST = 78, 6, 5
"""The room for the names of all lines, what of it the mark of a line takes, and the least for a name."""

Floats = NDArray[np.float64]


def draw_series(axes: Axes, curves: list[Curve], name: str, zones: tuple[Zone, ...] = (), left_out: int = 0) -> None:
    """Draw the curves of a quantity into axes whose horizontal limits are set; `left_out`: how many there are more."""
    axes.set_title(name, loc="left", fontsize=TEXT_SIZE, y=1.0, pad=5)  # a given y spares a look at all labels
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    shown_curves, left_out = curves[:MOST_CURVES], left_out + max(0, len(curves) - MOST_CURVES)
    if not shown_curves:
        _say(axes, "not measured")
        return
    drawn = [fitted(curve, PIXELS) for curve in shown_curves]
    scale = scale_of(np.concatenate([np.r_[each.low, each.high] for each in drawn]), never_negative=bool(zones))
    if scale is None:
        _say(axes, "no finite value")
    else:
        apply(axes, scale)
        if zones and scale.logarithmic:
            draw_zones(axes, zones)
        pairs = list(zip(drawn, LINES, strict=False))
        # Where nothing was clipped both norms are one, and the line that is always meant is the one to see.
        for curve, colour in sorted(pairs, key=lambda pair: pair[0].signal.quantity != "grad_norm_clipped"):
            _draw_line(axes, curve, colour)
        if scale.cut is not None:
            _note(axes, 0.99, f"▲ up to {number_text(scale.cut)}", "right")
    _mark_nonfinite(axes, shown_curves)
    if len(shown_curves) >= _LEGEND_FROM:
        _name_lines(axes, shown_curves, left_out)


def _say(axes: Axes, text: str) -> None:
    axes.set_yticks([])
    axes.grid(visible=False)
    say_instead(axes, text)


def _draw_line(axes: Axes, curve: Curve, colour: str) -> None:
    is_noisy = len(curve) >= _NOISY_FROM and curve.signal.quantity not in _SET_BY_THE_SCRIPT
    steps, low, high = curve.steps.astype(np.float64), curve.low, curve.high
    across, values = np.repeat(steps, 2), np.stack([low, high], axis=1).reshape(-1)
    if np.array_equal(low, high, equal_nan=True):
        across, values = steps, low
    parted = np.flatnonzero(np.diff(curve.attempts) != 0) + 1
    per_step = len(across) // len(steps)
    pale = _paler(colour) if is_noisy else colour
    lone = _lone_points(steps, (low + high) / 2, curve)
    axes.plot(*_with_gaps(across, values, parted * per_step), color=pale, linewidth=1.0 if is_noisy else 1.6, zorder=2)
    axes.plot(*lone, linestyle="none", marker="o", markersize=4, color=colour, zorder=3)
    if is_noisy:
        axes.plot(*_with_gaps(steps, _usual(curve), parted), color=colour, linewidth=1.6, zorder=3)


def _with_gaps(steps: Floats, values: Floats, parted: NDArray[np.int64]) -> tuple[Floats, Floats]:
    return np.insert(steps, parted, steps[parted]), np.insert(values, parted, np.nan)


def _lone_points(steps: Floats, values: Floats, curve: Curve) -> tuple[Floats, Floats]:
    """The points that no line reaches: with nothing finite of their attempt on either side."""
    there = np.isfinite(values)
    linked = there[1:] & there[:-1] & (np.diff(curve.attempts) == 0)
    lone = there & ~np.r_[False, linked] & ~np.r_[linked, False]
    return steps[lone], values[lone]


def _usual(curve: Curve) -> Floats:
    """The running median of what was measured within each attempt, over a sixtieth of the width."""
    usual = np.full(len(curve), np.nan)
    reach = max(2, len(curve) // 120)
    for attempt in np.unique(curve.attempts):
        here = np.flatnonzero((curve.attempts == attempt) & np.isfinite(curve.mean))
        if len(here):
            padded = np.pad(curve.mean[here], min(reach, len(here) - 1), mode="reflect")
            usual[here] = np.median(sliding_window_view(padded, 2 * min(reach, len(here) - 1) + 1), axis=1)
    return usual


def _paler(colour: str) -> tuple[float, float, float]:
    red, green, blue = to_rgb(colour)
    return (0.45 * red + 0.55, 0.45 * green + 0.55, 0.45 * blue + 0.55)


def _mark_nonfinite(axes: Axes, curves: list[Curve]) -> None:
    """Crosses at the upper edge; those too near to be told apart are one, with how many values it stands for."""
    left, right = axes.get_xlim()
    steps = np.concatenate([curve.steps[curve.nonfinite > 0] for curve in curves])
    counts = np.concatenate([curve.nonfinite[curve.nonfinite > 0] for curve in curves])
    if not len(steps):
        return
    order = np.argsort(steps, kind="stable")
    steps, counts = steps[order], counts[order]
    starts = np.flatnonzero(np.r_[True, np.diff(steps) > (right - left) * _APART])
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
    """The place where all are of one quantity; names that are the same when cut to their length are numbered."""
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
    longest = max(_SHORTEST, _LEGEND_LETTERS // (len(curves) + (left_out > 0)) - _HANDLE_LETTERS)
    for name, colour in zip(_names_of(curves, longest), LINES, strict=False):
        axes.plot([], [], color=colour, linewidth=2, label=name)
    if left_out > 0:
        axes.plot([], [], linestyle="none", label=f"and {left_out} more")
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 1.02),
        ncols=len(LINES) + 1,
        fontsize=SMALL_SIZE,
        frameon=False,
        labelcolor=FAINT,
        borderpad=0.1,
        borderaxespad=0.0,
        handlelength=1.2,
        columnspacing=1.2,
    )
