"""Puts the values of all layers at one step together, so that layers can be compared with each other.

In: points of layers, and of anything that comes at every step where it must be known soon. Out: all points of a step,
once a later point shows that it is complete. Of trainings side by side, as the halves of a GAN, each has its own: what
was measured at another moment of the same step is of another model.

Tells the whole model's values from those of a layer, for quantities that are measured by layer.

Puts what is measured of the heads of a model together by layer, and counts how long something is wrong with a layer.

In: points of heads, called `blocks.3.attn.head_0`, and of anything that comes at every step. Out: the heads of each
layer, once the step is complete; and those layers with which something has been wrong for long enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite
from statistics import median

from mlflow_stability.detectors.detector import ALL, WHOLE, Point
from mlflow_stability.vocabulary.measured.signal import Signal, of_the_whole


@dataclass(slots=True)
class LayerRound:
    """The layers of the step that is being seen."""

    step: int = -1
    time: float = 0.0
    points: list[Point] = field(default_factory=list)

    def take(self, point: Point, quantity: str) -> list[Point]:
        """Take a point in; gives the layers of the step before, in the model's order, where this one ends it."""
        if not self.points and point.quantity != quantity:
            return self.points  # nothing: a loss, at nearly every step
        done: list[Point] = []
        if point.step != self.step or point.time > self.time:
            done, self.points = self.points, []
            self.step, self.time = point.step, point.time
        if point.quantity == quantity and not of_the_whole(point.place):
            self.points.append(point)
        return done


BY_LAYER = frozenset({"adam_rms", "grad_norm", "param_norm", "update_ratio"})
"""What detectors judge of layers and of whole models apart; of all other quantities no place is a layer."""


def is_wanted(places: str, signal: Signal) -> bool:
    """Whether a detector that asks for these places wants to see this signal."""
    if places == ALL or signal.quantity not in BY_LAYER:
        return True
    return (places == WHOLE) == of_the_whole(signal.place)


_HEAD = ".head_"


@dataclass(slots=True)
class Heads:
    """What has been seen so far."""

    round: LayerRound = field(default_factory=LayerRound)
    starts: dict[str, float] = field(default_factory=dict)
    """The first value of each head."""
    ill: dict[str, int] = field(default_factory=dict)
    """How many measurements in a row something has been wrong with a layer, ..."""
    well: dict[str, int] = field(default_factory=dict)
    """... or nothing, since it was said."""

    def take(self, point: Point, quantity: str) -> dict[str, list[Point]]:
        """Take a point in; gives the heads of the step before by layer, where this one ends it."""
        layers: dict[str, list[Point]] = {}
        if not self.round.points and point.quantity != quantity:
            return layers
        for each in self.round.take(point, quantity):
            layer, _, head = each.place.rpartition(_HEAD)
            if layer and head.isdigit() and each.finite:
                self.starts.setdefault(each.place, each.value)
                layers.setdefault(layer, []).append(each)
        return layers

    def lasting(self, layers: Iterable[str], wrong: Iterable[str], rounds: int) -> list[str]:
        """Of the layers that were measured those that have been wrong for so long, each told once until it is well."""
        bad, told = set(wrong), []
        for layer in layers:
            if layer not in bad:
                self.ill.pop(layer, None)
                if layer in self.well:
                    self.well[layer] += 1
                    if self.well[layer] >= rounds:
                        del self.well[layer]
                continue
            self.ill[layer] = self.ill.get(layer, 0) + 1
            if layer in self.well:
                self.well[layer] = 0
            elif self.ill[layer] >= rounds:
                self.well[layer] = 0
                told.append(layer)
        return told


def head_of(place: str) -> int:
    """The number of a head."""
    return int(place.rpartition(_HEAD)[2])


def and_others(layers: int) -> str:
    """What is said of the other layers with which the same is wrong."""
    if layers == 0:
        return ""
    return f" The same in {layers} more layer{'s' if layers > 1 else ''}."


MIN_NORM = 1e-7
"""Gradient norm of a layer below which it has vanished."""
BAND = 100.0
"""Largest factor between a healthy layer's norm and the median of all layers."""


def gradient_flow(norms: Iterable[float]) -> float:
    """The share of layers in the band; 1 where there are none."""
    every = list(norms)
    usable = [each for each in every if isfinite(each) and each >= MIN_NORM]
    if not usable:
        return 0.0 if every else 1.0
    middle = median(usable)
    healthy = sum(middle / BAND <= each <= middle * BAND for each in usable)
    return healthy / len(every)
