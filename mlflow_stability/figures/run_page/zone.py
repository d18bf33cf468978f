"""Ranges of a quantity that have a name, drawn as tinted bands behind its curve.

They say where most trainings are; a model whose healthy gradient norm is 300 exists, and the judgements know it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from matplotlib.axes import Axes

from mlflow_stability.figures.style import FAINT, SMALL_SIZE


@dataclass(frozen=True, slots=True)
class Zone:
    """One range."""

    name: str
    low: float
    high: float
    tint: str
    limits: str
    """As they are written beside it: "0.1 to 10"."""


_HEALTHY, _DANGER, _LOW = "#e3f2ec", "#fbe4d8", "#ece6f3"
GRADIENT_NORM = (
    Zone("danger", 100.0, math.inf, _DANGER, "> 100"),
    Zone("healthy", 0.1, 10.0, _HEALTHY, "0.1 to 10"),
    Zone("vanishing", 0.0, 1e-5, _LOW, "< 1e-5"),
)
UPDATE_RATIO = (
    Zone("high", 0.1, math.inf, _DANGER, "> 0.1"),
    Zone("good", 1e-4, 1e-2, _HEALTHY, "1e-4 to 1e-2"),
    Zone("low", 0.0, 1e-7, _LOW, "< 1e-7"),
)


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
