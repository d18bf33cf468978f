"""Collect the values of all layers at one step, and judge how gradients flow through them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite
from statistics import median

from mlflow_stability.detectors.detector import Point
from mlflow_stability.vocabulary.measured.signal import is_whole_model

MIN_NORM = 1e-7  # gradient norm of a layer below which it has vanished
BAND = 100.0  # largest factor between a healthy layer's norm and the median of all layers


@dataclass(slots=True)
class LayerRound:
    """The layers of one step, complete once a later point comes; trainings side by side have a round of their own."""

    step: int = -1
    time: float = 0.0
    points: list[Point] = field(default_factory=list)

    def take(self, point: Point, quantity: str) -> list[Point]:
        """Take a point; return the layers of the round that it ends, in the model's order."""
        if not self.points and point.quantity != quantity:
            return self.points  # empty, as for nearly every loss
        done: list[Point] = []
        if point.step != self.step or point.time > self.time:
            done, self.points = self.points, []
            self.step, self.time = point.step, point.time
        if point.quantity == quantity and not is_whole_model(point.place):
            self.points.append(point)
        return done


def and_others(layers: int) -> str:
    """Return the sentence about the other layers with the same trouble."""
    if layers == 0:
        return ""
    return f" The same in {layers} more layer{'s' if layers > 1 else ''}."


def gradient_flow(norms: Iterable[float]) -> float:
    """Return the share of layers whose norm is in the band; 1 without layers."""
    norms = list(norms)
    usable = [norm for norm in norms if isfinite(norm) and norm >= MIN_NORM]
    if not usable:
        return 0.0 if norms else 1.0
    middle = median(usable)
    return sum(middle / BAND <= norm <= middle * BAND for norm in usable) / len(norms)
