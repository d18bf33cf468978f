"""Says when the gradient does not reach the first layers, while there is still something to learn."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar

from mlflow_stability.detectors.detector import LAYERS, Detector, Point
from mlflow_stability.detectors.layer_values import LayerRound
from mlflow_stability.detectors.loss_fall import FIRST_VALUES, FirstValues, LossFall
from mlflow_stability.detectors.streak import Streak
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.measured.signal import of_the_whole
from mlflow_stability.vocabulary.result import Action, Remedy
from mlflow_stability.vocabulary.result.finding import Finding


@dataclass(frozen=True, slots=True)
class VanishingLayerFacts(Facts):
    """A layer that gets almost no gradient, in several measurements in a row."""

    kind: ClassVar[str] = "vanishing_layer"
    metrics: ClassVar = ("grad_norm", "last", "share_of_loss")

    place: str
    """The layer."""
    grad_norm: float
    """Its gradient norm."""
    last: float
    """The gradient norm of the last layer."""
    last_place: str
    """That layer."""
    threshold: float
    """What the gradient norm is below: a norm, or a share of that of the last layer."""
    of_last: bool
    """Whether it is a share."""
    share_of_loss: float
    """The loss, as a share of its start."""
    in_a_row: int
    """Number of such measurements in a row."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``gradient norm of 0 1e-08 at step 400, below the threshold of 1e-07, in 5 measurements in …``."""
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

    kind: ClassVar[str] = "lost_gradient"
    metrics: ClassVar = ("grad_norm", "greatest", "share_of_loss")

    place: str
    """The first layer."""
    grad_norm: float
    """Its gradient norm."""
    greatest: float
    """The largest gradient norm of a layer."""
    greatest_place: str
    """That layer."""
    threshold: float
    """The share of the largest norm below which the gradient is lost."""
    share_of_loss: float
    """The loss, as a share of its start."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``gradient norm of 0 1e-09 at step 10, of 12 0.3 (threshold: a share of 0.0001); loss at …``."""
        return (
            f"gradient norm of {self.place} {self.grad_norm:.2g} at {unit} {step}, of {self.greatest_place} "
            f"{self.greatest:.2g} (threshold: a share of {self.threshold:g}); loss at {self.share_of_loss:.0%} of its "
            f"start."
        )


@dataclass(slots=True)
class GradientVanishingLayersState:
    """What has been seen so far."""

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

    smallest: float = 1e-7
    """Gradient norm of a layer below which it has vanished, for each unit of a loss that starts below 1."""
    share_of_last: float = 0.01
    """Share of the last layer's norm below which the first layer's has vanished."""
    rounds: int = 5
    """Number of measurements in a row."""
    fewest: int = 3
    """Minimum number of layers."""
    stuck: float = 0.98
    """Minimum share of the loss at the start for it to count."""
    start: int = FIRST_VALUES
    """Number of first losses that define the start; their median counts."""
    lost: float = 1e-4
    """Share of the largest norm below which the gradient is lost. Residual branches scaled to near zero at first do not
    count: their first layer gets its gradient."""
    lost_stuck: float = 0.9
    """Minimum share of the loss at the start for `lost` to count."""

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
    remedies = (
        Remedy(Action.CHECK_INITIALISATION),
        Remedy(Action.ADD_RESIDUALS_OR_NORMALISE),
        Remedy(Action.USE_RELU),
    )

    def begin(self) -> GradientVanishingLayersState:
        """Start afresh, knowing nothing."""
        return GradientVanishingLayersState(fall=LossFall(FirstValues(count=self.start)))

    def step(
        self, state: GradientVanishingLayersState, point: Point
    ) -> tuple[GradientVanishingLayersState, Finding | None]:
        """Look at the next loss or norm of a layer; layers are judged when the step is complete."""
        layers = state.round.take(point, "grad_norm")
        event = self._judged(state, layers) if len(layers) >= self.fewest else None
        if point.quantity == "loss" and point.finite and of_the_whole(point.place):
            state.fall.take(point.value)
        return state, event

    def _judged(self, state: GradientVanishingLayersState, layers: list[Point]) -> Finding | None:
        known = [each for each in _without_what_holds_them(layers) if each.finite and each.value > 0]
        share = state.fall.share() if layers[-1].has_level else None
        if len(known) < self.fewest or share is None or state.fall.learnt():
            return None
        first, last = known[0], known[-1]
        tiniest = min(known, key=lambda each: each.value)
        smallest = self.smallest * state.fall.size_at_start()
        tiny, faded = tiniest.value < smallest, first.value < last.value * self.share_of_last
        if share >= self.lost_stuck and self._is_lost(known):
            return self._of_the_lost(state, known, share)
        if not state.streak.reaches("", self.rounds, bad=(tiny or faded) and share >= self.stuck):
            return None
        where, limit = (tiniest, smallest) if tiny else (first, self.share_of_last)
        facts = VanishingLayerFacts(
            where.place, where.value, last.value, last.place, limit, not tiny, share, self.rounds
        )
        return self.finding(where, self.severities[-1], facts)

    def _is_lost(self, known: list[Point]) -> bool:
        limit = self.lost * max(each.value for each in known)
        front = median(each.value for each in known[: (len(known) + 1) // 2])
        return known[0].value < limit and front < limit

    def _of_the_lost(self, state: GradientVanishingLayersState, known: list[Point], share: float) -> Finding | None:
        if not state.streak.reaches("", 1, bad=True):
            return None
        first, most = known[0], max(known, key=lambda each: each.value)
        facts = LostGradientFacts(first.place, first.value, most.value, most.place, self.lost, share)
        return self.finding(first, self.severities[-1], facts)


def _without_what_holds_them(layers: list[Point]) -> list[Point]:
    """The layers from the first one on: parameters beside the layers come before them in the order of the model.

    What a model owns itself goes by its class, which begins with a capital as no module's name does.
    """
    for at, each in enumerate(layers):
        own = each.place[:1].isupper() and "." not in each.place
        if not own and not any(other.place.startswith(f"{each.place}.") for other in layers):
            return layers[at:]
    return layers
