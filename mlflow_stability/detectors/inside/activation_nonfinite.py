"""Says when a module begins to put out NaN or infinity, also where the loss never meets it."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlflow_stability.detectors.engine.debounce import StreakByPlace
from mlflow_stability.detectors.engine.detector import Detector, Point
from mlflow_stability.detectors.engine.finding import finding
from mlflow_stability.vocabulary.result.event import Event


@dataclass(slots=True)
class Outputs:
    """What has been seen so far."""

    sound: dict[str, int] = field(default_factory=dict)
    """At which step the outputs of a place were all finite last."""
    streaks: StreakByPlace = field(default_factory=StreakByPlace)


@dataclass(frozen=True, slots=True)
class ActivationNonfinite(Detector):
    """A module whose outputs were finite puts out NaN or infinity.

    What it sees: a module that puts out values that are not finite, and put out none when it was measured before. Of
    modules that have it together the first found is named. One finding until all are finite again.

    Why it matters: the loss and the gradient can stay finite for as long as a mask or a selection hides these values,
    and a product with zero does not hide a NaN.

    What to try: look for a softmax over a row that is masked as a whole, a logarithm or a division that is chosen
    away behind it; compute it where it is defined only.

    When it is wrong: a module that puts out minus infinity for what is not to be chosen, and does so for some batches
    only; one that has done so from the start is left alone.

    Reference: IEEE 754; https://docs.pytorch.org/docs/stable/notes/autograd.html
    """

    kind = "activation_nonfinite"
    noun = "outputs that are not finite"
    order = 330
    quantities = ("activation_nonfinite",)
    across_places = True
    remedies = (
        "Look for a softmax over a row that is masked as a whole, and for a logarithm or division by zero.",
        "Compute it only where it is defined, instead of choosing the result away behind it.",
    )
    state_type = Outputs

    def step(self, state: Outputs, point: Point) -> tuple[Outputs, Event | None]:
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
            f"{point.place} puts out values that are not finite at step {point.step} ({point.value:.0f} of those "
            f"looked at); at step {known} all of them were finite.",
            {"nonfinite_values": point.value},
        )
