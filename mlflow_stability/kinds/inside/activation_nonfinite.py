"""Says when a module begins to put out NaN or infinity, also where the loss never meets it."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlflow_stability.detectors.debounce import StreakByPlace
from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.detectors.finding_type import Instability, Symptom
from mlflow_stability.vocabulary.result import Action, Remedy
from mlflow_stability.vocabulary.result.event import Event


@dataclass(slots=True)
class ActivationNonfiniteState:
    """What has been seen so far."""

    sound: dict[str, int] = field(default_factory=dict)
    """At which step the outputs of a place were all finite last."""
    streaks: StreakByPlace = field(default_factory=StreakByPlace)


@dataclass(frozen=True, slots=True)
class ActivationNonfinite(Detector):
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

    def step(self, state: ActivationNonfiniteState, point: Point) -> tuple[ActivationNonfiniteState, Event | None]:
        """Look at how many values of a module's sample are not finite."""
        if not point.finite:
            return state, None
        bad = point.value > 0
        if not bad:
            state.sound[point.place] = point.step
        known = state.sound.get(point.place)
        if not state.streaks.reaches(point.place, 1, bad=bad and known is not None) or known is None:
            return state, None
        return state, finding(
            self,
            point,
            self.severities[-1],
            f"non-finite outputs of {point.place} at step {point.step} ({point.value:.0f} of the sampled values); all "
            f"finite at step {known}.",
            {"nonfinite_values": point.value},
        )
