"""Puts the values of all layers at one step together, so that layers can be compared with each other.

In: points of layers, and of anything that comes at every step where it must be known soon. Out: all points of a step,
once a later point shows that it is complete. Of trainings side by side, as the halves of a GAN, each has its own: what
was measured at another moment of the same step is of another model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlflow_stability.detectors.detector import Point
from mlflow_stability.vocabulary.signal import of_the_whole


@dataclass(slots=True)
class LayerRound:
    """The layers of the step that is being seen."""

    step: int = -1
    time: float = 0.0
    points: list[Point] = field(default_factory=list)

    def take(self, point: Point, quantity: str) -> list[Point]:
        """Take a point in; gives the layers of the step before, in the model's order, where this one ends it."""
        done: list[Point] = []
        if point.step != self.step or point.time > self.time:
            done, self.points = self.points, []
            self.step, self.time = point.step, point.time
        if point.quantity == quantity and not of_the_whole(point.place):
            self.points.append(point)
        return done
