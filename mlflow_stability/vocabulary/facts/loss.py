"""Facts about losses: spikes, and values that are not finite."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.vocabulary.facts.facts import Facts
from mlflow_stability.vocabulary.facts.text_enum import TextEnum
from mlflow_stability.vocabulary.text.phrases import infinite, sigmas


class SeenBy(TextEnum):
    """What found it."""

    DETECTOR = "detector"
    """The detector, while the training ran or in a replay of it."""
    WHOLE_CURVE = "whole curve"
    """The rule that judges a whole curve."""
    CLASSIC = "classic"
    """The classic rule, asked for by name."""


@dataclass(frozen=True, slots=True)
class SpikeFacts(Facts):
    """A loss that jumped above what was normal."""

    kind: ClassVar[str] = "loss_spike"

    signal: str
    """The loss, by the name that the log gives it."""
    value: float
    """The highest loss, in the unit of the loss."""
    baseline: float
    """The loss that was normal just before, in the unit of the loss."""
    sigmas: float | None
    """How far above its baseline it is, in σ of its noise; None by the classic rule."""
    threshold: float
    """From where on it is a spike: in σ of its noise; by the classic rule in the unit of the loss."""
    seen_by: SeenBy = SeenBy.DETECTOR
    """What found it."""
    gradient_sigmas: float | None = None
    """How far the gradient norm of the same step is above its baseline, in σ; None where it was not needed."""
    points: int = 1
    """Number of logged values that are high."""
    first_step: int | None = None
    """The step at which it began to rise; None where that is the step of the highest loss."""
    recovered: bool | None = None
    """Whether it was over by the end of the log; None while the training runs."""
    spikes: int | None = None
    """Number of spikes up to this one in a short time; None where spikes are rare."""
    spikes_since: int | None = None
    """The step of the first of them."""
    high_steps: int | None = None
    """Number of high losses after it that made it a warning, itself included; None where these did not."""
    watched_steps: int | None = None
    """Number of losses that were looked at for that, itself included."""
    value_after: float | None = None
    """Median of the losses after it, in the unit of the loss, where that made it a warning."""
    baseline_after: float | None = None
    """Median of their baselines, in the unit of the loss."""
    found_first: int | None = None
    """The step of the spike, where what came after it made it a warning."""
    values_before: int | None = None
    """By the classic rule: number of values whose mean is the baseline."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``loss 7.47 at step 400, 18.8σ above its baseline of 0.552 (threshold 8σ).``"""
        if self.seen_by is SeenBy.WHOLE_CURVE:
            return self._of_the_curve(step, unit)
        if self.sigmas is None:
            return (
                f"{self.signal} {self.value:.4g} at {unit} {step}, above the threshold of {self.threshold:.4g} (mean "
                f"of the {self.values_before} values before: {self.baseline:.4g})."
            )
        at = step if self.found_first is None else self.found_first
        above = f"{sigmas(self.sigmas)} above its baseline of {self.baseline:.4g} (threshold {self.threshold:.3g}σ)"
        parts = [f"{self.signal} {self.value:.4g} at {unit} {at}, {above}"]
        if self.gradient_sigmas is not None:
            parts.append(f"gradient norm {sigmas(self.gradient_sigmas)} above its baseline")
        if self.spikes is not None:
            parts.append(f"number {self.spikes} since {unit} {self.spikes_since}")
        if self.high_steps is not None:
            parts.append(f"high in {self.high_steps} of {self.watched_steps} {unit}s")
        elif self.value_after is not None and self.watched_steps is not None:
            parts.append(
                f"the next {self.watched_steps - 1} losses are near {self.value_after:.4g}, above their baseline of "
                f"{self.baseline_after:.4g}"
            )
        return f"{'; '.join(parts)}."

    def _of_the_curve(self, step: int, unit: str) -> str:
        over = self.sigmas is not None and self.sigmas >= self.threshold
        above = f" ({sigmas(self.sigmas or 0.0)}, threshold {self.threshold:.3g}σ)" if over else ""
        said = f"{self.signal} jumped to {self.value:.4g} at {unit} {step} from about {self.baseline:.4g}{above}"
        if self.points > 1:
            begun = "" if self.first_step is None else f" at {unit} {self.first_step}"
            said = f"{self.signal} rose from about {self.baseline:.4g}{begun} to {self.value:.4g} at {unit} {step}"
        if not self.recovered:
            return f"{said}; the log ends there."
        return f"{said} and recovered after {self.points} points." if self.points > 1 else f"{said} and recovered."


@dataclass(frozen=True, slots=True)
class NonFiniteFacts(Facts):
    """A loss or a gradient norm that is NaN or infinite."""

    kind: ClassVar[str] = "non_finite"

    signal: str
    """What is not finite, by the name that the log gives it."""
    value: float
    """Its first value that is not finite."""
    last_finite: float | None
    """Its last finite value before; None where there is none."""
    nan_from: int | None = None
    """The step at which an infinity became NaN; None where it did not."""
    count: int = 1
    """Number of values that are not finite."""
    last_step: int | None = None
    """The step of the last of several."""
    finite_afterwards: bool | None = None
    """Whether finite values follow; None where the log ends with the only value, and while the training runs."""

    @property
    def last_finite_clause(self) -> str:
        """``; last finite value 0.31``."""
        return "; no finite value before" if self.last_finite is None else f"; last finite value {self.last_finite:.4g}"

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``loss is NaN at step 400; last finite value 0.31.``"""
        said = f"{self.signal} is {'NaN' if math.isnan(self.value) else infinite(self.value)} at {unit} {step}"
        if self.nan_from is not None:
            said += f" and NaN from {unit} {self.nan_from} on"
        said += self.last_finite_clause
        if self.count > 1:
            said += f"; {self.count} non-finite values up to {unit} {self.last_step}"
        if self.finite_afterwards is None:
            return f"{said}."
        return f"{said}; {'finite again' if self.finite_afterwards else 'none finite'} afterwards."
