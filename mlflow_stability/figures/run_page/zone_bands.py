"""Draws zones as tinted bands behind a curve, with their names beside it."""

from __future__ import annotations

import math

from matplotlib.axes import Axes

from mlflow_stability.figures.run_page.zone import Zone
from mlflow_stability.figures.style import FAINT, SMALL_SIZE

_LONGEST = 14
"""How many letters there is room for beside a panel."""


def draw_zones(axes: Axes, zones: tuple[Zone, ...]) -> None:
    """Draw what of the zones lies within the axes' limits, their names to the right; the scale is logarithmic."""
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
        text = f"{zone.name}\n{zone.limits}" if lines >= 2 else line if len(line) <= _LONGEST else zone.name
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
