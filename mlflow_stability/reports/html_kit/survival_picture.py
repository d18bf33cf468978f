"""Lays out survival curves: the share of runs not lost yet, over steps.

In: the curves. Out: a path of stairs for each with its band, and the ticks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlflow_stability.reports.html_kit.axis import Axis, Tick
from mlflow_stability.reports.html_kit.overlay import HEIGHT, WIDTH
from mlflow_stability.vocabulary.result import SurvivalCurve


@dataclass(frozen=True, slots=True)
class StepCurve:
    """One curve."""

    label: str
    number: int
    """Which of the colours is its."""
    path: str
    band: str
    """Empty where there is none."""


@dataclass(frozen=True, slots=True)
class SurvivalPicture:
    """The picture."""

    curves: tuple[StepCurve, ...]
    steps: tuple[Tick, ...]
    shares: tuple[Tick, ...]


def survival_picture_of(curves: Sequence[SurvivalCurve]) -> SurvivalPicture | None:
    """The parts; all runs together where they were not parted. None where nothing was lost."""
    if not curves or not any(each.lost for each in curves):
        return None
    shown = curves[1:] or curves
    across = Axis(0.0, float(max(each.last_step for each in curves)))
    drawn = tuple(_stairs(curve, number, across, len(shown)) for number, curve in enumerate(shown, start=1))
    shares = tuple(Tick(100.0 - each, f"{each} %") for each in (0, 25, 50, 75, 100))
    return SurvivalPicture(drawn, across.ticks(), shares)


def _stairs(curve: SurvivalCurve, number: int, across: Axis, of: int) -> StepCurve:
    edges = [0.0, *map(float, curve.steps), float(curve.last_step)]
    upper = _walk(edges, [1.0, *curve.shares], across)
    band = ""
    if curve.low and of <= 2:  # more bands than two hide each other
        high, low = _walk(edges, [1.0, *curve.high], across), _walk(edges, [1.0, *curve.low], across)
        band = f"M{'L'.join([*high, *reversed(low)])}Z"
    return StepCurve(curve.label, number, f"M{'L'.join(upper)}", band)


def _walk(edges: Sequence[float], shares: Sequence[float], across: Axis) -> list[str]:
    """The corners of stairs: each share from its step to the next."""
    places = across.places(edges) * WIDTH / 100
    corners = []
    for number, share in enumerate(shares):
        down = (1 - share) * HEIGHT
        corners += [f"{places[number]:.1f} {down:.1f}", f"{places[number + 1]:.1f} {down:.1f}"]
    return corners
