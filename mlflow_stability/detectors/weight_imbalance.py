"""Says when the weights of some layers are far larger than those of others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.detectors.layer_round import LayerRound
from mlflow_stability.detectors.streak import Streak
from mlflow_stability.detectors.whole_model import LAYERS
from mlflow_stability.vocabulary.event import Event, Severity


@dataclass(slots=True)
class LayerWeights:
    """What has been seen so far."""

    round: LayerRound = field(default_factory=LayerRound)
    streak: Streak = field(default_factory=Streak)


@dataclass(frozen=True, slots=True)
class WeightImbalance:
    """The weights of some layers are far larger than those of others.

    What it sees: weight norms of layers that lie more than 1000 times apart, in 5 measurements in a row. Weights that
    are all zero do not count. One finding until they are closer.

    Why it matters: one learning rate cannot suit weights that differ so much, and weight decay reaches only the large
    ones.

    What to try: look at the initialisation; look for layers that grow without bound; an optimizer that adapts each
    layer's step (LAMB, Muon).

    When it is wrong: layers that start at or near zero on purpose: adapters, gains of residual branches, single biases.
    It spoke in none of 117 healthy trainings of 39 kinds, but gains that begin at a millionth and learn slowly stay
    apart for long, so that it is no more than information.

    Reference: You et al., LAMB (arXiv:1904.00962)
    """

    ratio: float = 1000.0
    """How many times the largest norm of a layer may be above the smallest."""
    rounds: int = 5
    """In how many measurements in a row."""
    fewest: int = 3
    """Of how many layers at least."""

    kind: ClassVar[str] = "weight_imbalance"
    rule: ClassVar[str] = ""
    quantities: ClassVar[tuple[str, ...]] = ("param_norm",)
    compared: ClassVar[tuple[str, ...]] = ()
    across_places: ClassVar[bool] = True
    places: ClassVar[str] = LAYERS
    severities: ClassVar[tuple[Severity, ...]] = (Severity.INFO,)
    experimental: ClassVar[bool] = True
    remedies: ClassVar[tuple[str, ...]] = (
        "Look at the initialisation.",
        "Look for layers that grow without bound.",
        "Use an optimizer that adapts each layer's step.",
    )

    def begin(self) -> LayerWeights:
        """Start afresh, knowing nothing."""
        return LayerWeights()

    def step(self, state: LayerWeights, point: Point) -> tuple[LayerWeights, Event | None]:
        """Look at the next norm of a layer; they are compared when the next measurement begins."""
        layers = state.round.take(point, "param_norm")
        known = [each for each in layers if each.finite and each.value > 0]
        if len(known) < self.fewest:
            return state, None
        smallest, largest = min(known, key=_norm), max(known, key=_norm)
        if not state.streak.reaches(self.rounds, bad=largest.value > smallest.value * self.ratio):
            return state, None
        return state, finding(
            self,
            smallest,
            self.severities[-1],
            f"Weight norms of layers lie {largest.value / max(smallest.value, 5e-324):,.0f} times apart at step "
            f"{smallest.step}: {largest.value:.2g} in {largest.place}, {smallest.value:.2g} in {smallest.place}.",
            {"largest": largest.value, "smallest": smallest.value, "layers": float(len(known))},
        )


def _norm(point: Point) -> float:
    return point.value
