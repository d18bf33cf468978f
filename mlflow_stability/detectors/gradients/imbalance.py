"""Says when some layers get far larger gradients than others.

Says when the weights of some layers are far larger than those of others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlflow_stability.detectors.engine.debounce import Streak
from mlflow_stability.detectors.engine.detector import LAYERS, Detector, Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.detectors.engine.layer_values import LayerRound
from mlflow_stability.detectors.engine.loss_fall import LossFalls
from mlflow_stability.vocabulary.result.event import Event, Severity


@dataclass(slots=True)
class LayerGradients:
    """What has been seen so far."""

    round: LayerRound = field(default_factory=LayerRound)
    streak: Streak = field(default_factory=Streak)
    falls: LossFalls = field(default_factory=LossFalls)


@dataclass(frozen=True, slots=True)
class GradientImbalance(Detector):
    """Some layers get far larger gradients than others.

    What it sees: gradient norms of layers that lie more than 1000 times apart, in 5 measurements in a row. Layers
    without any gradient are another matter, and so is a loss below a hundredth of where it began. One finding until
    they are closer.

    Why it matters: one learning rate cannot suit all of them: where it is right for the large ones, the small ones
    stand still.

    What to try: look at the initialisation; normalise before each block; add residual connections; an optimizer that
    adapts each layer's step (Adam, LAMB).

    When it is wrong: models whose layers differ in size by design, with an optimizer that evens it out. It spoke in
    none of 117 healthy trainings of 39 kinds (96,000 measured values); at 100 times it would have in 6.

    Reference: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks (2010)
    """

    ratio: float = 1000.0
    """How many times the largest norm of a layer may be above the smallest."""
    steps: int = 5
    """In how many measurements in a row."""
    fewest: int = 3
    """Of how many layers at least."""

    kind = "gradient_imbalance"
    noun = "uneven gradients"
    order = 160
    quantities = ("loss", "grad_norm")
    across_places = True
    places = LAYERS
    remedies = (
        "Look at the initialisation.",
        "Normalise before each block, or add residual connections.",
        "Use an optimizer that adapts each layer's step.",
    )
    state_type = LayerGradients

    def step(self, state: LayerGradients, point: Point) -> tuple[LayerGradients, Event | None]:
        """Look at the next loss, or norm of a layer; layers are compared when the next measurement begins."""
        layers = state.round.take(point, "grad_norm")
        if point.quantity == "loss" and point.finite:
            state.falls.take(point.place, point.value)
        known = [each for each in layers if each.finite and each.value > 0]
        if len(known) < self.fewest or state.falls.learnt():
            return state, None
        smallest, largest = min(known, key=_norm), max(known, key=_norm)
        if not state.streak.reaches(self.steps, bad=largest.value > smallest.value * self.ratio):
            return state, None
        return state, finding(
            self,
            smallest,
            self.severities[-1],
            f"Gradient norms of layers lie {largest.value / max(smallest.value, 5e-324):,.0f} times apart at step "
            f"{smallest.step}: {largest.value:.2g} in {largest.place}, {smallest.value:.2g} in {smallest.place}.",
            {"largest": largest.value, "smallest": smallest.value, "layers": float(len(known))},
        )


def _norm(point: Point) -> float:
    return point.value


@dataclass(slots=True)
class LayerWeights:
    """What has been seen so far."""

    round: LayerRound = field(default_factory=LayerRound)
    streak: Streak = field(default_factory=Streak)


@dataclass(frozen=True, slots=True)
class WeightImbalance(Detector):
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

    kind = "weight_imbalance"
    noun = "uneven weights"
    order = 220
    quantities = ("param_norm",)
    across_places = True
    places = LAYERS
    severities = (Severity.INFO,)
    experimental = True
    remedies = (
        "Look at the initialisation.",
        "Look for layers that grow without bound.",
        "Use an optimizer that adapts each layer's step.",
    )
    state_type = LayerWeights

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
