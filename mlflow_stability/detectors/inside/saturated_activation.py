"""Says when an activation is pinned at its ends."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlflow_stability.detectors.engine.debounce import StreakByPlace
from mlflow_stability.detectors.engine.detector import Detector, Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.detectors.engine.loss_fall import LossFalls
from mlflow_stability.vocabulary.result.event import Event


@dataclass(slots=True)
class Ends:
    """What has been seen so far."""

    streaks: StreakByPlace = field(default_factory=StreakByPlace)
    falls: LossFalls = field(default_factory=LossFalls)


@dataclass(frozen=True, slots=True)
class SaturatedActivation(Detector):
    """Most values of a tanh or sigmoid are pinned at its ends.

    What it sees: a module of tanh, sigmoid, or their hard and clipped kin of which more than half of the values lie
    where it is flat (tanh beyond 0.999, sigmoid within 0.001 of 0 or 1), in 3 measurements in a row, unless the
    loss is below a hundredth of where it began: what has been learnt may be sure. Of modules that have it together the
    first found is named. One finding until all are better.

    Why it matters: where an activation is flat, next to no gradient comes through.

    What to try: look at the scale of the weights and inputs before it; lower the learning rate; normalise before it.

    When it is wrong: an output that is meant to be sure, such as the last sigmoid of a classifier that has learnt its
    task; gates that are meant to be open or closed. It spoke in none of 42 healthy trainings of 14 kinds (495 shares
    measured every 100 steps, 4,950 every 10).

    Reference: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks (2010)
    """

    share: float = 0.5
    """The share of values above which it counts."""
    rounds: int = 3
    """In how many measurements in a row."""

    kind = "saturated_activation"
    noun = "saturated activations"
    order = 320
    quantities = ("loss", "activation_saturation")
    across_places = True
    remedies = (
        "Look at the scale of the weights and inputs before it.",
        "Lower the learning rate.",
        "Normalise before the activation.",
    )
    state_type = Ends

    def step(self, state: Ends, point: Point) -> tuple[Ends, Event | None]:
        """Look at the next loss, or share of pinned values of a module."""
        if not point.finite:
            return state, None
        if point.quantity == "loss":
            state.falls.take(point.place, point.value)
            return state, None
        bad = point.value > self.share and not state.falls.learnt()
        if not state.streaks.reaches(point.place, self.rounds, bad=bad):
            return state, None
        return state, finding(
            self,
            point,
            self.severities[-1],
            f"{point.value:.1%} of what {point.place} puts out is pinned at its ends at step {point.step}, and more "
            f"than {self.share:.0%} was in {self.rounds} measurements in a row.",
            {"pinned_share": point.value, "limit": self.share},
        )
