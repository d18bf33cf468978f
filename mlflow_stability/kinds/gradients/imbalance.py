"""Detect layers whose gradients or weights are far larger than those of others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.detector import LAYERS, Detector, Point
from mlflow_stability.detectors.layer_values import LayerRound
from mlflow_stability.detectors.progress import JudgedByProgress, Progress
from mlflow_stability.detectors.streak import Streak
from mlflow_stability.vocabulary.facts import Facts, FollowedFacts
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity
from mlflow_stability.vocabulary.text import factor


@dataclass(frozen=True, slots=True)
class ImbalanceFacts(Facts):
    """Layers whose norms differ too much."""

    metrics: ClassVar = {"largest": "largest", "smallest": "smallest", "layers": "layers"}
    of_what: ClassVar[str]
    """``gradient`` or ``weight``."""

    largest: float
    """The largest norm of a layer."""
    largest_place: str
    """That layer."""
    smallest: float
    """The smallest norm of a layer, above zero."""
    smallest_place: str
    """That layer."""
    ratio: float
    """The threshold of the ratio between them."""
    layers: int
    """Number of layers that were compared."""

    def statement(self, step: int, unit: str, /) -> str:
        ratio = factor(self.largest / max(self.smallest, 5e-324))
        return (
            f"{self.of_what} norms of layers differ by a factor of {ratio} at "
            f"{unit} {step} (threshold {self.ratio:,.0f}): {self.largest_place} {self.largest:.2g}, "
            f"{self.smallest_place} {self.smallest:.2g}."
        )


@dataclass(frozen=True, slots=True)
class GradientImbalanceFacts(ImbalanceFacts, FollowedFacts):
    """Gradient norms of layers that differ too much."""

    kind = "gradient_imbalance"
    of_what: ClassVar[str] = "gradient"


@dataclass(frozen=True, slots=True)
class WeightImbalanceFacts(ImbalanceFacts):
    """Weight norms of layers that differ too much."""

    kind = "weight_imbalance"
    of_what: ClassVar[str] = "weight"

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return self.statement(step, unit)


@dataclass(slots=True)
class GradientImbalanceState:
    round: LayerRound = field(default_factory=LayerRound)
    small: dict[str, int] = field(default_factory=dict)
    """Number of measurements in a row in which the gradient of a layer was too small."""
    is_found: bool = False
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True, slots=True)
class GradientImbalance(JudgedByProgress):
    """Some layers get far larger gradients than others.

    What it sees: a layer whose gradient norm is less than 1/{ratio} of the largest one of a layer, in {steps}
    measurements in a row. Models of fewer than {fewest} layers are not judged. Layers without any gradient do not
    count, nor does a loss below {loss_fall.LEARNT:percent} of its start. The finding ends when there is no such layer.
    It is INFO while the loss falls, and a warning where the loss is above {progress.FALLEN:percent} of its start or at
    {progress.RISEN} times its lowest level.

    Why it matters: one learning rate does not suit all of them. Where it is right for the large ones, the small ones
    barely learn.

    What to try: check the initialisation; normalise before each block; add residual connections; use an optimizer that
    adapts each layer's step (Adam, LAMB).

    When it is wrong: models whose layers differ in size by design, with an optimizer that evens it out; an expert that
    few tokens reach. No finding in 117 healthy trainings of 39 kinds (96,000 measured values); a factor of 100 would
    give 6. With layers measured every 20 steps 1 in 141, of a mixture of experts.

    Reference: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks (2010)
    """

    ratio: float = 1000.0
    """Maximum ratio of the largest to the smallest norm of a layer."""
    steps: int = 5
    """Number of measurements in a row."""
    fewest: int = 3
    """Minimum number of layers."""

    kind = "gradient_imbalance"
    noun = "uneven gradients"
    question = "Do some layers get far larger gradients than others?"
    check_by_hand = (
        "Divide the largest gradient norm of a layer by the smallest: above {ratio} one learning rate does not suit."
    )
    order = 160
    quantities = ("loss", "grad_norm")
    across_places = True
    places = LAYERS
    remedies = (
        Remedy(Action.CHECK_INITIALISATION),
        Remedy(Action.NORMALISE_OR_ADD_RESIDUALS),
        Remedy(Action.ADAPT_STEP_OF_LAYERS),
    )
    state_type = GradientImbalanceState

    def goes_on(self, state: GradientImbalanceState) -> bool:
        return state.is_found

    def look(self, state: GradientImbalanceState, point: Point) -> Finding | None:
        layers = _positive(state.round.take(point, "grad_norm"))
        if len(layers) < self.fewest or state.progress.losses.falls.learnt():
            return None
        largest = max(layers, key=_norm)
        small = [layer for layer in layers if largest.value > layer.value * self.ratio]
        # Counted by layer: each expert of a mixture gets few rows at one step or another.
        state.small = {layer.place: state.small.get(layer.place, 0) + 1 for layer in small}
        lasting = [layer for layer in small if state.small[layer.place] >= self.steps]
        was_found = state.is_found and bool(small)
        state.is_found = was_found or bool(lasting)
        if was_found or not lasting:
            return None
        smallest = min(lasting, key=_norm)
        facts = GradientImbalanceFacts(*_named(largest), *_named(smallest), self.ratio, len(layers))
        return self.finding(smallest, self.severities[-1], facts)


def _positive(layers: list[Point]) -> list[Point]:
    return [layer for layer in layers if layer.finite and layer.value > 0]


def _norm(layer: Point) -> float:
    return layer.value


def _named(layer: Point) -> tuple[float, str]:
    return layer.value, layer.place


@dataclass(slots=True)
class WeightImbalanceState:
    round: LayerRound = field(default_factory=LayerRound)
    streak: Streak = field(default_factory=Streak)


@dataclass(frozen=True, slots=True)
class WeightImbalance(Detector):
    """The weights of some layers are far larger than those of others.

    What it sees: weight norms of layers that differ by more than a factor of {ratio}, in {rounds} measurements in a
    row. Models of fewer than {fewest} layers are not judged. Weights that are all zero do not count. The finding ends
    when they are closer.

    Why it matters: one learning rate does not suit weights that differ so much, and weight decay affects only the large
    ones.

    What to try: check the initialisation; look for layers that grow without bound; use an optimizer that adapts each
    layer's step (LAMB, Muon).

    When it is wrong: layers that start near zero on purpose: adapters, gains of residual branches, single biases. No
    finding in 117 healthy trainings of 39 kinds. Gains that start at 1e-6 and learn slowly differ for long; therefore
    it is INFO only.

    Reference: You et al., LAMB (arXiv:1904.00962)
    """

    ratio: float = 1000.0
    """Maximum ratio of the largest to the smallest norm of a layer."""
    rounds: int = 5
    """Number of measurements in a row."""
    fewest: int = 3
    """Minimum number of layers."""

    kind = "weight_imbalance"
    noun = "uneven weights"
    question = "Is the initialisation right?"
    check_by_hand = (
        "Compare the standard deviation of each weight at step 0 with sqrt(2 / fan_in), or with 0.02 in transformers."
    )
    order = 220
    quantities = ("param_norm",)
    across_places = True
    places = LAYERS
    severities = (Severity.INFO,)
    experimental = True
    remedies = (
        Remedy(Action.CHECK_INITIALISATION),
        Remedy(Action.LOOK_FOR_GROWING_LAYERS),
        Remedy(Action.ADAPT_STEP_OF_LAYERS),
    )
    state_type = WeightImbalanceState

    def step(self, state: WeightImbalanceState, point: Point) -> tuple[WeightImbalanceState, Finding | None]:
        layers = _positive(state.round.take(point, "param_norm"))
        if len(layers) < self.fewest:
            return state, None
        smallest, largest = min(layers, key=_norm), max(layers, key=_norm)
        if not state.streak.reaches("", self.rounds, bad=largest.value > smallest.value * self.ratio):
            return state, None
        facts = WeightImbalanceFacts(*_named(largest), *_named(smallest), self.ratio, len(layers))
        return state, self.finding(smallest, self.severities[-1], facts)
