"""Says when an activation is pinned at its ends."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlflow_stability.detectors.debounce import StreakByPlace
from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.detectors.loss_fall import LossFalls
from mlflow_stability.detectors.progress import JudgedByProgress, Progress
from mlflow_stability.vocabulary.result import LOWER_RATE, Action, Remedy
from mlflow_stability.vocabulary.result.event import Event


@dataclass(slots=True)
class SaturatedActivationState:
    """What has been seen so far."""

    streaks: StreakByPlace = field(default_factory=StreakByPlace)
    falls: LossFalls = field(default_factory=LossFalls)
    progress: Progress = field(default_factory=Progress)


@dataclass(frozen=True, slots=True)
class SaturatedActivation(JudgedByProgress):
    """Most outputs of a tanh or sigmoid are saturated.

    What it sees: a tanh, a sigmoid, or their hard variants with more than {share:percent} of the values in the flat
    part (tanh beyond 0.999, sigmoid within 0.001 of 0 or 1), in {rounds} measurements in a row. Nothing is reported
    once the loss is below {loss_fall.LITTLE:percent} of its start. Of modules found together the first is named. The
    finding ends when all are better. It is INFO while the loss falls, and a warning where the loss is above
    {progress.FALLEN:percent} of its start or at {progress.RISEN} times its lowest level.

    Why it matters: in the flat part almost no gradient passes through.

    What to try: check the scale of the weights and inputs before it; lower the learning rate; normalise before it.

    When it is wrong: an output that should be certain, such as the last sigmoid of a trained classifier; units that are
    meant to be fully open or closed. No finding in 42 healthy trainings of 14 kinds (495 shares measured every 100
    steps, 4,950 every 10).

    Reference: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks (2010)
    """

    share: float = 0.5
    """Share of saturated values above which it counts."""
    rounds: int = 3
    """Number of measurements in a row."""

    kind = "saturated_activation"
    noun = "saturated activations"
    question = "Are activations saturated?"
    check_by_hand = (
        "Print the share of sigmoid or tanh outputs within 1 % of their limits; above half they pass no gradient."
    )
    symptom = Symptom.INSIDE
    order = 320
    quantities = ("loss", "activation_saturation")
    judged = "pinned_share"
    across_places = True
    remedies = (
        Remedy(Action.CHECK_SCALE_BEFORE),
        LOWER_RATE,
        Remedy(Action.NORMALISE_BEFORE_ACTIVATION),
    )
    state_type = SaturatedActivationState

    def goes_on(self, state: SaturatedActivationState) -> bool:
        """Whether a place is still bad."""
        return state.streaks.said is not None

    def look(self, state: SaturatedActivationState, point: Point) -> tuple[SaturatedActivationState, Event | None]:
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
            f"{point.value:.1%} of the outputs of {point.place} saturated at step {point.step} (threshold "
            f"{self.share:.0%}, in {self.rounds} measurements in a row).",
            {"pinned_share": point.value, "limit": self.share},
        )
