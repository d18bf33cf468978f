"""Says when an activation is pinned at its ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.detectors.streak import StreakWithLoss, StreakWithLossDetector
from mlflow_stability.vocabulary.facts import Facts, FollowedFacts, LimitFacts
from mlflow_stability.vocabulary.result import LOWER_RATE, Action, Remedy


@dataclass(frozen=True, slots=True)
class SaturatedActivationFacts(FollowedFacts, LimitFacts):
    """A module with many saturated outputs, as their share."""

    kind: ClassVar[str] = "saturated_activation"
    metrics: ClassVar = {"pinned_share": "value", "limit": "threshold"}

    def statement(self, step: int, unit: str, /) -> str:
        """``80.0% of the outputs of 1 saturated at step 400 (threshold 50%, in 3 measurements in a row).``"""
        return (
            f"{self.value:.1%} of the outputs of {self.place} saturated at {unit} {step} (threshold "
            f"{self.threshold:.0%}, in {self.in_a_row} measurements in a row)."
        )


@dataclass(frozen=True, slots=True)
class SaturatedActivation(StreakWithLossDetector):
    """Most outputs of a tanh or sigmoid are saturated.

    What it sees: a tanh, a sigmoid, or their hard variants with more than {share:percent} of the values in the flat
    part (tanh beyond 0.999, sigmoid within 0.001 of 0 or 1), in {rounds} measurements in a row. Nothing is reported
    once the loss is below {loss_fall.LEARNT:percent} of its start. Of modules found together the first is named. The
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
    in_a_row = "rounds"
    remedies = (
        Remedy(Action.CHECK_SCALE_BEFORE),
        LOWER_RATE,
        Remedy(Action.NORMALISE_BEFORE_ACTIVATION),
    )

    def facts(self, state: StreakWithLoss, point: Point) -> Facts | None:
        """Whether too many values of a module are pinned."""
        if point.value <= self.share or state.progress.losses.falls.learnt():
            return None
        return SaturatedActivationFacts(point.value, self.share, in_a_row=self.rounds, place=point.place)
