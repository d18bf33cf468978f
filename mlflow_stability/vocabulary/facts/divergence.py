"""Facts about losses that rose and stayed high."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.vocabulary.facts.facts import Facts
from mlflow_stability.vocabulary.text.phrases import factor, risen, sigmas


@dataclass(frozen=True, slots=True)
class DivergenceFacts(Facts):
    """A loss that jumped and stayed high for most of the last steps."""

    kind: ClassVar[str] = "divergence"

    value: float
    """The loss, in its unit."""
    baseline: float
    """The loss that was normal before, in its unit."""
    sigmas: float
    """How far the loss is above that, in σ of its noise."""
    threshold: float
    """From how many σ on a loss is high."""
    high_steps: int
    """Number of high losses among the last ones."""
    of_steps: int
    """Number of these last losses."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``loss 9.1 at step 400, 30.2σ above its baseline of 1.28; above the threshold (6σ) in 12 of …``."""
        return (
            f"loss {self.value:.4g} at {unit} {step}, {sigmas(self.sigmas)} above its baseline of {self.baseline:.4g}; "
            f"above the threshold ({self.threshold:g}σ) in {self.high_steps} of the last {self.of_steps} {unit}s."
        )


@dataclass(frozen=True, slots=True)
class SlowRiseFacts(Facts):
    """A loss that rose slowly."""

    kind: ClassVar[str] = "slow_rise"

    mean: float
    """Mean of the last losses, in the unit of the loss."""
    of_steps: int
    """Number of these losses."""
    level: float
    """The level from which it rose, in the unit of the loss."""
    rise: float
    """How far it rose, as a share of that level."""
    errors: float | None = None
    """The rise in standard errors of its noise; None where it became worse later."""
    threshold: float | None = None
    """From how many standard errors on it is a rise; None where it became worse later."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``loss rose slowly: mean of the last 32 steps 2.1 at step 400, 12% above 1.9.``"""
        above = risen(self.rise, f"{self.level:.4g}")
        return f"loss rose slowly: mean of the last {self.of_steps} {unit}s {self.mean:.4g} at {unit} {step}, {above}."


@dataclass(frozen=True, slots=True)
class LastingRiseFacts(Facts):
    """A loss whose whole curve shows that it rose and did not come down again."""

    kind: ClassVar[str] = "lasting_rise"

    signal: str
    """The loss, by the name that the log gives it."""
    first_step: int
    """The step at which it began to rise."""
    last: float
    """The loss at its end, in its unit."""
    last_is_single: bool
    """Whether that is the last value, and not a median of the last ones."""
    is_finite: bool
    """Whether the loss is finite at its end; else `last` is its last finite value."""
    best: float
    """The lowest level, in the unit of the loss."""
    best_step: int
    """The step of that level."""
    threshold: float
    """From how many times its best level on it is a rise."""

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        """``loss rose from step 400 on: ended at 9, 7 times its best level of 1.28 at step 380 …``."""
        ended = f"ended {'at' if self.last_is_single else 'near'} {self.last:.4g}"
        ended = ended if self.is_finite else f"last finite value {self.last:.4g}"
        times = "; best level"
        if self.best > 0:
            times = f", {factor(self.last / self.best)} times its best level of"
        # Judged by means of levels: the ratio of these two medians may be lower.
        clearly = self.best > 0 and self.last >= self.threshold * self.best
        limit = f" (threshold {self.threshold:.3g} times)" if clearly else ""
        return (
            f"{self.signal} rose from {unit} {self.first_step} on: {ended}{times} {self.best:.4g} at "
            f"{unit} {self.best_step}{limit}."
        )
