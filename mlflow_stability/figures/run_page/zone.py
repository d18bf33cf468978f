"""Ranges of a quantity that have a name; nothing here draws.

They say where most trainings are; a model whose healthy gradient norm is 300 exists, and the judgements know it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


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


def zone_of(value: float, zones: tuple[Zone, ...]) -> Zone | None:
    """The zone that a value lies in; None between them."""
    return next((each for each in zones if each.low <= value <= each.high), None)
