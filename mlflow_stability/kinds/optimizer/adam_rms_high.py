"""Detect gradients larger than Adam's second moment expects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import WHOLE, Point
from mlflow_stability.detectors.finding_type import Instability
from mlflow_stability.detectors.streak import Streak, StreakDetector
from mlflow_stability.vocabulary.facts import Facts, RiseFacts
from mlflow_stability.vocabulary.result import CLIP_AT_1, LOWER_BETA2, Action, Remedy, Severity


@dataclass(frozen=True, slots=True)
class AdamRmsFacts(RiseFacts):
    """A high AdamW RMS: the root mean square of the gradient divided by its second-moment estimate."""

    kind = "adam_rms_high"
    metrics: ClassVar = {"adam_rms": "value", "level": "baseline"}

    threshold: float
    """The AdamW RMS above which it is high."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        limit = f"threshold {self.threshold:g}"
        return f"AdamW RMS {self.value:.3g} at {unit} {step} ({limit}); baseline {self.baseline:.3g}."


@dataclass(frozen=True, slots=True)
class AdamRmsHigh(StreakDetector):
    """The gradients are larger than Adam's second moment expects.

    What it sees: an AdamW RMS (root mean square of the gradient divided by its second-moment estimate) above {highest}
    and above {smallest_rise} times its baseline; the minimum number of such values in a row is {steps}. The finding
    ends when it is lower.

    Why it matters: the second moment underestimates the gradient, so the step is too large. A loss spike often follows
    1-8 steps later.

    What to try: lower beta2 to 0.95-0.98; clip the updates (StableAdamW); clip gradients at 1.0.

    When it is wrong: early steps and small layers exceed that without harm. Measured at every step it was found in 38
    of 117 healthy trainings, 29 times in 1000 values; therefore it is INFO only.

    Reference: Wortsman et al., Stable and low-precision training (arXiv:2304.13013)
    """

    highest: float = 1.0
    """AdamW RMS above which it is high."""
    smallest_rise: float = 2.0
    """Minimum ratio to its baseline."""
    steps: int = 1
    """Number of high values in a row."""

    kind = "adam_rms_high"
    instability = Instability.SIGN
    noun = "a high AdamW RMS"
    plural = "periods of a high AdamW RMS"
    question = "Did the gradient outrun Adam's second moment?"
    check_by_hand = (
        "Log sqrt(mean(grad^2 / max(v, eps^2))) by layer; above 2 the step is larger than the learning rate means."
    )
    order = 200
    quantities = ("adam_rms",)
    compared = ("adam_rms",)
    in_a_row = "steps"
    places = WHOLE
    severities = (Severity.INFO,)
    experimental = True
    remedies = (LOWER_BETA2, Remedy(Action.CLIP_UPDATES), CLIP_AT_1)

    def facts(self, _state: Streak, point: Point) -> Facts | None:
        high = point.value > self.highest and point.value >= point.center * self.smallest_rise
        return AdamRmsFacts(point.value, point.center, self.smallest_rise, self.highest) if high else None
