"""Says when a module begins to put out NaN or infinity, also where the loss never meets it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding_type import Instability, Symptom
from mlflow_stability.detectors.streak import StreakByPlace, StreakDetector
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Remedy


@dataclass(frozen=True, slots=True)
class ActivationNonfiniteFacts(Facts):
    """A module whose outputs were finite and are not any more."""

    kind: ClassVar[str] = "activation_nonfinite"
    metrics: ClassVar = ("nonfinite_values",)

    place: str
    """The module."""
    nonfinite_values: float
    """Number of values that are not finite, among those that were sampled."""
    last_finite_step: int
    """The step of the last measurement in which all were finite."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``non-finite outputs of blocks.0 at step 400 (3 of the sampled values); all finite at step 300.``"""
        return (
            f"non-finite outputs of {self.place} at {unit} {step} ({self.nonfinite_values:.0f} of the sampled values); "
            f"all finite at {unit} {self.last_finite_step}."
        )


@dataclass(slots=True)
class ActivationNonfiniteState(StreakByPlace):
    """What has been seen so far."""

    sound: dict[str, int] = field(default_factory=dict)
    """At which step the outputs of a place were all finite last."""


@dataclass(frozen=True, slots=True)
class ActivationNonfinite(StreakDetector):
    """A module started to output NaN or infinity.

    What it sees: a module whose outputs are not finite and were finite in the measurement before. Of modules found
    together the first is named. The finding ends when all outputs are finite again.

    Why it matters: loss and gradient stay finite as long as a mask or a selection hides these values. A product with
    zero does not hide a NaN.

    What to try: look for a softmax over a fully masked row, and for a logarithm or a division whose result is masked
    afterwards. Compute it only where it is defined.

    When it is wrong: a module that outputs minus infinity as a mask for some batches only. One that has done so from
    the start is ignored.

    Reference: IEEE 754; https://docs.pytorch.org/docs/stable/notes/autograd.html
    """

    kind = "activation_nonfinite"
    instability = Instability.SIGN
    noun = "outputs that are not finite"
    question = "Are all activations finite?"
    check_by_hand = "Register a forward hook on every module that prints the first name whose output is not finite."
    symptom = Symptom.NON_FINITE
    order = 330
    quantities = ("activation_nonfinite",)
    across_places = True
    remedies = (
        Remedy(Action.LOOK_FOR_MASKED_ROW),
        Remedy(Action.COMPUTE_ONLY_WHERE_DEFINED),
    )
    state_type = ActivationNonfiniteState

    def facts(self, state: ActivationNonfiniteState, point: Point) -> Facts | None:
        """Whether values of a module's sample are not finite any more."""
        if not point.value > 0:
            state.sound[point.place] = point.step
            return None
        known = state.sound.get(point.place)
        return None if known is None else ActivationNonfiniteFacts(point.place, point.value, known)
