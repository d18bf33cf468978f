"""Detect layers that get no gradient, whose gradient jumps, or whose norms are far from those of others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.detector import LAYERS, Detector, Point
from mlflow_stability.detectors.episodes import EpisodeFilter
from mlflow_stability.detectors.finding_type import Instability, Moves, Symptom
from mlflow_stability.detectors.layer_values import LayerRound
from mlflow_stability.detectors.loss_fall import FirstValues
from mlflow_stability.detectors.progress import JudgedByProgress, Progress
from mlflow_stability.detectors.streak import Streak
from mlflow_stability.vocabulary.facts import Facts, FollowedFacts, RiseFacts, times_beyond
from mlflow_stability.vocabulary.result import CLIP_GRADIENTS, LOWER_RATE_2_TO_5, Action, Finding, Remedy, Severity
from mlflow_stability.vocabulary.text.phrases import factor


@dataclass(frozen=True, slots=True)
class DeadLayerFacts(Facts):
    kind = "dead_layer"
    metrics = ("grad_norm", "measurements")

    place: str  # The layer
    grad_norm: float  # Its gradient norm, which is 0
    measurements: int  # Number of measurements in a row without a gradient
    first_step: int  # The step of the first of them
    rounds: int  # The threshold of their number
    steps: int  # The threshold of the steps between the first and the last of them

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"gradient norm of {self.place} 0 in {self.measurements} measurements, {unit} {self.first_step} to {unit} "
            f"{step} (threshold {self.rounds} measurements over {self.steps} {unit}s)."
        )


@dataclass(slots=True)
class LayerWithoutGradient:
    rounds: int = 0
    first_step: int = 0  # the first step without a gradient
    weight_norm: float | None = None
    growth: float | None = None  # growth of the weight norm between the last two measurements, as a share


@dataclass(slots=True)
class DeadLayerState:
    layers: dict[str, LayerWithoutGradient] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)  # layers that have been without a gradient for long enough
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True, slots=True)
class DeadLayer(Detector):
    """A layer gets no gradient.

    What it sees: a layer whose gradient norm is exactly zero in {rounds} measurements in a row over at least {steps}
    steps, while its weights change by an even decay at most (even to {even:percent}). Nothing is reported once the loss
    is below {loss_fall.LEARNT:percent} of its start: then small gradients are normal. Steps without a loss do not
    count. Of layers that are dead together the first found is named. The finding ends when all get a gradient again.

    Why it matters: the layer does not learn. It is disconnected from the loss, frozen by mistake, or all of its units
    are dead.

    What to try: check that its output reaches the loss; look for `detach` and `no_grad`; check whether all of its units
    are inactive; lower the learning rate.

    When it is wrong: layers that few batches use: experts, heads of other tasks, embeddings of rare words. No finding
    in 117 healthy trainings of 39 kinds (96,000 measured values).

    Reference: Lu et al., Dying ReLU and initialization (arXiv:1903.06733)
    """

    rounds: int = 5  # number of measurements in a row
    steps: int = 400  # minimum number of steps between the first and the last of them
    even: float = 0.1
    """Maximum change of the weight norm's growth, as a share of it. A larger change is no decay, but a gradient between
    two measurements."""

    kind = "dead_layer"
    noun = "a dead layer"
    plural = "dead layers"
    question = "Is any layer without a gradient?"
    check_by_hand = "After backward, list parameters whose grad is None or all zero; look for detach and no_grad."
    symptom = Symptom.DEAD_LAYER
    order = 170
    quantities = ("loss", "param_norm", "grad_norm")
    across_places = True
    takes_losses = False
    places = LAYERS
    remedies = (
        Remedy(Action.CHECK_PATH_TO_LOSS),
        Remedy(Action.LOOK_FOR_DETACH),
        Remedy(Action.LOOK_FOR_INACTIVE_UNITS),
    )
    state_type = DeadLayerState

    def step(self, state: DeadLayerState, point: Point) -> tuple[DeadLayerState, Finding | None]:
        if not point.finite:
            return state, None
        layer = state.layers.setdefault(point.place, LayerWithoutGradient())
        losses = state.progress.losses
        if point.quantity == "param_norm":
            is_alive = self._has_learnt(layer, point.value)
        else:
            # Without a loss nothing was passed backward, and no layer could get a gradient.
            is_alive = point.value != 0.0 or losses.falls.learnt() or losses.step != point.step
        if is_alive:
            layer.rounds = 0
            state.dead.discard(point.place)
        if is_alive or point.quantity == "param_norm":
            return state, None
        layer.rounds += 1
        if layer.rounds == 1:
            layer.first_step = point.step
        if layer.rounds < self.rounds or point.step - layer.first_step < self.steps or point.place in state.dead:
            return state, None
        state.dead.add(point.place)
        if len(state.dead) > 1:
            return state, None
        facts = DeadLayerFacts(point.place, point.value, layer.rounds, layer.first_step, self.rounds, self.steps)
        return state, self.finding(point, self.severities[-1], facts)

    def _has_learnt(self, layer: LayerWithoutGradient, weight_norm: float) -> bool:
        """Return whether the weights changed otherwise than by an even decay."""
        before, layer.weight_norm = layer.weight_norm, weight_norm
        if before is None or before <= 0:
            return weight_norm != (before or weight_norm)
        growth, layer.growth = layer.growth, weight_norm / before - 1
        if growth is None or layer.growth == growth:
            return False
        return layer.growth > 0 or abs(layer.growth - growth) > self.even * abs(growth)


@dataclass(frozen=True, slots=True)
class LayerExplosionFacts(RiseFacts):
    """The gradient norm of a layer that jumped; of several the one with the largest jump."""

    kind = "layer_explosion"
    metrics: ClassVar = {
        "grad_norm": "value",
        "level": "baseline",
        "z": "sigmas",
        "jumped": "jumped",
        "layers": "layers",
    }

    sigmas: float  # How far the norm is above its baseline, in σ of its noise
    threshold: float  # The threshold in σ, without that of the norm's own noise
    jumped: int  # Number of layers that jumped together
    layers: int  # Number of layers that were measured

    @property
    def exceeds(self) -> float | None:
        return times_beyond(self.sigmas, self.threshold)

    def sentence(self, step: int, unit: str = "step", /) -> str:
        others = f"; {self.jumped} of {self.layers} layers jumped together" if self.jumped > 1 else ""
        return (
            f"gradient norm of {self.place} {self.value:.4g} at {unit} {step}, {self.value / self.baseline:,.0f} times "
            f"its baseline of {self.baseline:.4g} (threshold {self.ratio:g} times){others}."
        )


@dataclass(slots=True)
class LayerExplosionState:
    round: LayerRound = field(default_factory=LayerRound)
    episode_filter: EpisodeFilter = field(default_factory=EpisodeFilter)
    begun: dict[str, FirstValues] = field(default_factory=dict)  # the first norms of each layer


@dataclass(frozen=True, slots=True)
class LayerExplosion(Detector):
    """The gradient norm of a layer jumped far above its baseline.

    What it sees: the gradient norm of a layer at least {threshold}σ above its baseline and {smallest_rise} times as
    high. Heavy-tailed noise raises that σ to {share_of_tail} times what it reaches once in {baseline.TAIL:one_in}
    measurements. Norms below {loss_fall.LEARNT:percent} of the first norm never count. Layers are measured every few
    steps, so it finds an explosion that lasts or that falls on a measurement. Of layers that jump together the largest
    jump is named. The finding ends after {calm_rounds} normal measurements.

    Why it matters: it shows which layer makes the whole gradient explode, and finds a small layer before the whole norm
    shows it.

    What to try: inspect this layer's weights and inputs; clip gradients; lower the learning rate by a factor of
    2 to 5.

    When it is wrong: layers that few batches reach, and layers that start to learn late. No finding in 117 healthy
    trainings of 39 kinds (96,000 measured values).

    Reference: Pascanu et al. (arXiv:1211.5063); GLM-130B (arXiv:2210.02414, 3)
    """

    threshold: float = 5.5  # threshold in σ of the norm's logarithm above its baseline
    share_of_tail: float = 0.7
    """Factor on the σ that the norm's own noise reaches once in {baseline.TAIL:one_in} measurements; the higher
    threshold counts."""
    smallest_rise: float = 8.0  # minimum ratio of the norm to its baseline
    calm_rounds: int = 3  # number of normal measurements in a row that end the finding

    kind = "layer_explosion"
    instability = Instability.HARMFUL
    noun = "an explosion of one layer"
    plural = "explosions of single layers"
    question = "In which layer did the gradient explode first?"
    check_by_hand = (
        "Print the norm of each parameter's gradient at the last steps before it; look at the earliest jump."
    )
    order = 150
    quantities = ("loss", "grad_norm")
    compared = ("grad_norm",)
    across_places = True
    places = LAYERS
    by_sensitivity: ClassVar[Mapping[str, Moves]] = {
        "threshold": "times",
        "share_of_tail": "times",
        "smallest_rise": "power",
    }
    remedies = (Remedy(Action.INSPECT_LAYER), CLIP_GRADIENTS, LOWER_RATE_2_TO_5)
    state_type = LayerExplosionState

    def step(self, state: LayerExplosionState, point: Point) -> tuple[LayerExplosionState, Finding | None]:
        layers = state.round.take(point, "grad_norm")
        if not layers:
            return state, None
        for layer in layers:
            if layer.finite:
                state.begun.setdefault(layer.place, FirstValues()).take(layer.value)
        jumped = [layer for layer in layers if self._is_high(layer) and state.begun[layer.place].matters(layer.value)]
        if not jumped:
            if state.episode_filter.reported:
                state.episode_filter.note_calm(self.calm_rounds)
            return state, None
        if not state.episode_filter.report(self.severities[-1]):
            return state, None
        worst = max(jumped, key=lambda layer: layer.value / layer.center)
        value, level, z, place = worst.value, worst.center, worst.z, worst.place
        facts = LayerExplosionFacts(
            value, level, self.smallest_rise, z, self.threshold, len(jumped), len(layers), place=place
        )
        return state, self.finding(worst, self.severities[-1], facts)

    def _is_high(self, layer: Point) -> bool:
        limit = max(self.threshold, self.share_of_tail * layer.tail)
        rises = layer.center > 0 and layer.value >= layer.center * self.smallest_rise
        return layer.finite and rises and layer.z >= limit


@dataclass(frozen=True, slots=True)
class ImbalanceFacts(Facts):
    metrics: ClassVar = {"largest": "largest", "smallest": "smallest", "layers": "layers"}
    of_what: ClassVar[str]  # ``gradient`` or ``weight``

    largest: float  # The largest norm of a layer
    largest_place: str  # That layer
    smallest: float  # The smallest norm of a layer, above zero
    smallest_place: str  # That layer
    ratio: float  # The threshold of the ratio between them
    layers: int  # Number of layers that were compared

    def statement(self, step: int, unit: str, /) -> str:
        ratio = factor(self.largest / max(self.smallest, 5e-324))
        return (
            f"{self.of_what} norms of layers differ by a factor of {ratio} at "
            f"{unit} {step} (threshold {self.ratio:,.0f}): {self.largest_place} {self.largest:.2g}, "
            f"{self.smallest_place} {self.smallest:.2g}."
        )


@dataclass(frozen=True, slots=True)
class GradientImbalanceFacts(ImbalanceFacts, FollowedFacts):
    kind = "gradient_imbalance"
    of_what: ClassVar[str] = "gradient"


@dataclass(frozen=True, slots=True)
class WeightImbalanceFacts(ImbalanceFacts):
    kind = "weight_imbalance"
    of_what: ClassVar[str] = "weight"

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return self.statement(step, unit)


@dataclass(slots=True)
class GradientImbalanceState:
    round: LayerRound = field(default_factory=LayerRound)
    small: dict[str, int] = field(default_factory=dict)  # number of measurements with too small a gradient, by layer
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

    ratio: float = 1000.0  # maximum ratio of the largest to the smallest norm of a layer
    steps: int = 5  # number of measurements in a row
    fewest: int = 3  # minimum number of layers

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

    ratio: float = 1000.0  # maximum ratio of the largest to the smallest norm of a layer
    rounds: int = 5  # number of measurements in a row
    fewest: int = 3  # minimum number of layers

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
