"""Detect gradients that vanish while the loss has hardly fallen, of the whole model and of layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar

from mlflow_stability.detectors.detector import LAYERS, WHOLE, Detector, Point
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.detectors.layer_values import LayerRound
from mlflow_stability.detectors.loss_fall import FIRST_VALUES, FirstValues, LossFall
from mlflow_stability.detectors.streak import Streak
from mlflow_stability.vocabulary.facts import Facts, LimitFacts
from mlflow_stability.vocabulary.measured.signal import is_whole_model
from mlflow_stability.vocabulary.result import Action, Finding, Remedy, Severity


@dataclass(frozen=True, slots=True)
class GradientVanishingFacts(LimitFacts):
    kind = "gradient_vanishing"
    metrics: ClassVar = {
        "grad_norm": "value",
        "limit": "threshold",
        "start": "start_norm",
        "share_of_loss": "share_of_loss",
    }

    start_norm: float | None  # The gradient norm at the start, where it is below a share of that; else None
    share_of_start: float  # That share
    share_of_loss: float | None  # The loss, as a share of its start; None where that is not known

    def sentence(self, step: int, unit: str = "step", /) -> str:
        below = f"the threshold of {self.threshold:.3g}"
        if self.start_norm is not None:
            below = f"{self.share_of_start:.0%} of its start ({self.start_norm:.3g})"
        loss = "" if self.share_of_loss is None else f"; loss at {self.share_of_loss:.0%} of its start"
        norm = f"gradient norm {self.value:.3g} at {unit} {step}"
        return f"{norm}, below {below} for {self.in_a_row} {unit}s{loss}."


@dataclass(slots=True)
class GradientVanishingState:
    fall: LossFall = field(default_factory=LossFall)
    first_norms: list[float] = field(default_factory=list)
    start_norm: float | None = None
    tiny: int = 0  # number of steps in a row with a norm below the threshold
    faded: int = 0  # number of steps in a row with a norm below its share of the start
    is_found: bool = False
    measured: bool = False  # whether any norm has been above zero


@dataclass(frozen=True, slots=True)
class GradientVanishing(Detector):
    """The gradient norm is close to zero, and the loss has hardly fallen.

    What it sees: a norm below {smallest} for {steps} steps, unless the loss has fallen to {gained:percent} of its
    start, the median of its first {start} values. Where the loss starts below 1, the threshold is that share of it: a
    loss that is multiplied by a small number has small gradients, and trains. Or a norm below {share_of_start:percent}
    of its start for {faded_steps} steps while the loss has fallen by less than {stuck:fall}. A loss below
    {loss_fall.LEARNT:percent} of its first value is learnt, and a tiny gradient is normal then. A norm of exactly 0
    from the first step on counts after {faded_steps} steps without progress; before that it may not be measured. The
    finding ends when the norm is back.

    Why it matters: the weights no longer change; more steps achieve nothing.

    What to try: check the initialisation; add residual connections; normalise before each block; raise the learning
    rate; look for saturated or dead units.

    When it is wrong: norms that were logged after clipping to a tiny value.

    Reference: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks (2010)
    """

    smallest: float = 1e-5  # gradient norm below which it has vanished, for each unit of a loss that starts below 1
    steps: int = 10  # number of steps in a row below `smallest`
    gained: float = 0.5  # at or below this share of its start the loss is learnt, and a tiny gradient is normal
    share_of_start: float = 0.1  # share of the norm at the start below which it has faded
    faded_steps: int = 200  # number of steps in a row below `share_of_start`
    stuck: float = 0.98  # minimum share of the loss at the start for a faded gradient to count
    start: int = FIRST_VALUES  # number of first values that define the start; their median counts

    kind = "gradient_vanishing"
    noun = "vanishing gradients"
    symptom = Symptom.VANISHING
    order = 70
    quantities = ("loss", "grad_norm")
    places = WHOLE
    remedies = (
        Remedy(Action.CHECK_INITIALISATION),
        Remedy(Action.ADD_RESIDUALS_OR_NORMALISE),
        Remedy(Action.RAISE_LEARNING_RATE),
        Remedy(Action.LOOK_FOR_SATURATED_UNITS),
    )

    def begin(self) -> GradientVanishingState:
        return GradientVanishingState(LossFall(FirstValues(count=self.start)))

    def step(self, state: GradientVanishingState, point: Point) -> tuple[GradientVanishingState, Finding | None]:
        if not point.finite:
            return state, None
        if point.quantity == "loss":
            state.fall.take(point.value)
            return state, None
        norm = point.value
        if state.start_norm is None:
            state.first_norms.append(norm)
            if len(state.first_norms) == self.start:
                state.start_norm = median(state.first_norms)
        state.measured = state.measured or norm > 0
        start = state.start_norm
        limit = self.smallest * (state.fall.size_at_start() if point.has_level else 1.0)
        tiny, faded = norm < limit, start is not None and norm < start * self.share_of_start
        share = state.fall.share() if (tiny or faded) and point.has_level else None
        if (tiny or faded) and point.has_level and state.fall.learnt():
            tiny = faded = False
        tiny = tiny and not (point.has_level and state.fall.has_fallen_to(self.gained))
        state.tiny = state.tiny + 1 if tiny else 0
        state.faded = state.faded + 1 if faded and share is not None and share >= self.stuck else 0
        state.is_found = state.is_found and (tiny or faded)
        lasts = state.tiny >= self.steps or state.faded >= self.faded_steps
        # A log may have a 0 for what it does not measure: such norms count once the loss has not changed for long.
        is_stuck = state.tiny >= self.faded_steps and share is not None and share >= self.stuck
        if state.is_found or not (tiny or faded) or not lasts or not (state.measured or is_stuck):
            return state, None
        state.is_found = True
        is_tiny = state.tiny >= self.steps
        facts = GradientVanishingFacts(
            norm,
            limit,
            None if is_tiny else start,
            self.share_of_start,
            state.fall.share(),
            in_a_row=state.tiny if is_tiny else state.faded,
        )
        return state, self.finding(point, Severity.WARNING, facts)


@dataclass(frozen=True, slots=True)
class VanishingLayerFacts(Facts):
    """A layer that gets almost no gradient, in several measurements in a row."""

    kind = "vanishing_layer"
    metrics = ("grad_norm", "last", "share_of_loss")

    place: str  # The layer
    grad_norm: float  # Its gradient norm
    last: float  # The gradient norm of the last layer
    last_place: str  # That layer
    threshold: float  # What the gradient norm is below: a norm, or a share of that of the last layer
    of_last: bool  # Whether it is a share
    share_of_loss: float  # The loss, as a share of its start
    in_a_row: int  # Number of such measurements in a row

    def sentence(self, step: int, unit: str = "step", /) -> str:
        below = f"below the threshold of {self.threshold:.3g}"
        if self.of_last:
            share = self.grad_norm / self.last
            below = f"{share:.2g} of that of {self.last_place} (threshold {self.threshold:g})"
        return (
            f"gradient norm of {self.place} {self.grad_norm:.2g} at {unit} {step}, {below}, in {self.in_a_row} "
            f"measurements in a row; loss at {self.share_of_loss:.0%} of its start."
        )


@dataclass(frozen=True, slots=True)
class LostGradientFacts(Facts):
    """First layers whose gradient is almost nothing beside the largest one."""

    kind = "lost_gradient"
    metrics = ("grad_norm", "greatest", "share_of_loss")

    place: str  # The first layer
    grad_norm: float  # Its gradient norm
    greatest: float  # The largest gradient norm of a layer
    greatest_place: str  # That layer
    threshold: float  # The share of the largest norm below which the gradient is lost
    share_of_loss: float  # The loss, as a share of its start

    def sentence(self, step: int, unit: str = "step", /) -> str:
        return (
            f"gradient norm of {self.place} {self.grad_norm:.2g} at {unit} {step}, of {self.greatest_place} "
            f"{self.greatest:.2g} (threshold: a share of {self.threshold:g}); loss at {self.share_of_loss:.0%} of its "
            f"start."
        )


@dataclass(slots=True)
class GradientVanishingLayersState:
    round: LayerRound = field(default_factory=LayerRound)
    streak: Streak = field(default_factory=Streak)
    fall: LossFall = field(default_factory=LossFall)


@dataclass(frozen=True, slots=True)
class GradientVanishingLayers(Detector):
    """The gradient does not reach the first layers, and the loss has hardly fallen.

    What it sees: in {rounds} measurements in a row, a layer whose gradient norm is below {smallest} but not zero (of a
    loss that starts below 1, below that share of it), or a first layer below {share_of_last:percent} of the last
    layer's norm; and a loss that has fallen by less than {stuck:fall} from the median of its first {start} values. Or,
    in one measurement, a first layer and half of the first half of the layers below {lost:percent} of the largest norm;
    and a loss that has fallen by less than {lost_stuck:fall}. Parameters of the model itself, such as learned
    positions, are not a first layer. Models of fewer than {fewest} layers are not judged. The finding ends when the
    gradient is back.

    Why it matters: the layers before that one keep their initial weights; only the layers behind it learn.

    What to try: check the initialisation; add residual connections; normalise before each block; use ReLU or GELU
    instead of sigmoid or tanh.

    When it is wrong: a first layer with small gradients by design, such as a wide embedding; models whose first module
    by name is not the first in the forward pass. No finding in 117 healthy trainings of 39 kinds (96,000 measured
    values).

    Reference: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks (2010)
    """

    smallest: float = 1e-7  # gradient norm below which a layer has vanished, for each unit of a first loss below 1
    share_of_last: float = 0.01  # share of the last layer's norm below which the first layer's has vanished
    rounds: int = 5  # number of measurements in a row
    fewest: int = 3  # minimum number of layers
    stuck: float = 0.98  # minimum share of the loss at the start for it to count
    start: int = FIRST_VALUES  # number of first losses that define the start; their median counts
    lost: float = 1e-4
    """Share of the largest norm below which the gradient is lost. Residual branches scaled to near zero at first do not
    count: their first layer gets its gradient."""
    lost_stuck: float = 0.9  # minimum share of the loss at the start for `lost` to count

    kind = "gradient_vanishing"
    question = "Has the gradient vanished?"
    check_by_hand = (
        "Divide the first layer's gradient norm by the last layer's: "
        "below {share_of_last} the first layers barely learn."
    )
    order = 140
    rule = "layers"
    quantities = ("loss", "grad_norm")
    across_places = True
    places = LAYERS
    remedies = (Remedy(Action.CHECK_INITIALISATION), Remedy(Action.ADD_RESIDUALS_OR_NORMALISE), Remedy(Action.USE_RELU))

    def begin(self) -> GradientVanishingLayersState:
        return GradientVanishingLayersState(fall=LossFall(FirstValues(count=self.start)))

    def step(
        self, state: GradientVanishingLayersState, point: Point
    ) -> tuple[GradientVanishingLayersState, Finding | None]:
        layers = state.round.take(point, "grad_norm")
        event = self._judge(state, layers) if len(layers) >= self.fewest else None
        if point.quantity == "loss" and point.finite and is_whole_model(point.place):
            state.fall.take(point.value)
        return state, event

    def _judge(self, state: GradientVanishingLayersState, layers: list[Point]) -> Finding | None:
        share = state.fall.share() if layers[-1].has_level else None
        layers = [layer for layer in _from_first_layer(layers) if layer.finite and layer.value > 0]
        if len(layers) < self.fewest or share is None or state.fall.learnt():
            return None
        first, last, largest = layers[0], layers[-1], max(layers, key=_norm)
        front = median(map(_norm, layers[: (len(layers) + 1) // 2]))
        if share >= self.lost_stuck and max(first.value, front) < self.lost * largest.value:
            if not state.streak.reaches("", 1, bad=True):
                return None
            lost = LostGradientFacts(first.place, first.value, largest.value, largest.place, self.lost, share)
            return self.finding(first, self.severities[-1], lost)
        tiniest, smallest = min(layers, key=_norm), self.smallest * state.fall.size_at_start()
        tiny, faded = tiniest.value < smallest, first.value < last.value * self.share_of_last
        if not state.streak.reaches("", self.rounds, bad=(tiny or faded) and share >= self.stuck):
            return None
        where, limit = (tiniest, smallest) if tiny else (first, self.share_of_last)
        facts = VanishingLayerFacts(
            where.place, where.value, last.value, last.place, limit, not tiny, share, self.rounds
        )
        return self.finding(where, self.severities[-1], facts)


def _norm(layer: Point) -> float:
    return layer.value


def _from_first_layer(layers: list[Point]) -> list[Point]:
    """Drop parameters that come before the first layer: those of the model itself, and of modules that hold layers."""
    for index, layer in enumerate(layers):
        # Parameters of the model itself are named by its class, which begins with a capital as no module's name does.
        is_of_model = layer.place[:1].isupper() and "." not in layer.place
        if not is_of_model and not any(other.place.startswith(f"{layer.place}.") for other in layers):
            return layers[index:]
    return layers
