"""Scales of axes: kind, limits, and the numbers written beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_HEADROOM = 0.08
_MAX_REACH = 2.0
"""A linear scale reaches at most this many times the range of the middle 98 % of values beyond these."""
_SMALLEST, _LARGEST = 1e-250, 1e250  # beyond these the arithmetic of an axis overflows


@dataclass(frozen=True, slots=True)
class Scale:
    logarithmic: bool
    bottom: float
    top: float
    cut: float | None = None
    """The largest value beyond `top`, or None."""


def scale_of(values: Floats, *, never_negative: bool = False) -> Scale | None:
    """Return the scale for these values, or None where none is finite.

    Positive values get a logarithmic scale; in a linear one, a few extremes do not press the others into a line.
    With `never_negative`, zeros are at the lower edge of a logarithmic scale.
    """
    values = np.clip(values[np.isfinite(values)], -_LARGEST, _LARGEST)
    if not len(values):
        return None
    if never_negative and (values > 0).any():
        values = values[values > 0]
    low, high = float(values.min()), float(values.max())
    if low > 0:
        low, high = max(low, _SMALLEST), max(high, _SMALLEST)
        room = max((math.log(high) - math.log(low)) * _HEADROOM, 0.05)
        return Scale(True, low * math.exp(-room), high * math.exp(room))
    inner_low, inner_high = np.percentile(values, [1, 99]).tolist()
    reach = _MAX_REACH * (inner_high - inner_low)
    cut = None
    if reach > 0:
        low = max(low, inner_low - reach)
        if high > inner_high + reach:
            cut, high = high, inner_high + reach
    room = (high - low) * _HEADROOM or max(abs(high) * 0.1, 1e-9)
    return Scale(False, low - room, high + room, cut)


def apply(axes: Axes, scale: Scale) -> None:
    if scale.logarithmic:
        axes.set_yscale("log")
        decades = math.log10(scale.top) - math.log10(scale.bottom)
        if decades < 1.2:
            axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
        elif decades < 2.5:
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=20))
        else:
            axes.yaxis.set_major_locator(LogLocator(numticks=7))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))
    axes.set_ylim(scale.bottom, scale.top)


def number_text(value: float) -> str:
    """Return a short number, as people type it: ``1e-5``."""
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        mantissa, _, power = f"{value:.2e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def step_axis(axes: Axes, first: int, last: int, *, labels: bool) -> None:
    """Give the axes the steps as their horizontal axis."""
    room = (last - first) * 0.012 or 0.5
    axes.set_xlim(first - room, last + room)
    if last - first < 5:
        axes.xaxis.set_major_locator(FixedLocator(range(first, last + 1)))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(7, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.tick_params(axis="x", labelbottom=labels, length=3 if labels else 0)
    if labels:
        axes.set_xlabel("step")
