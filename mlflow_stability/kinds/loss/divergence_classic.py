"""Says when the loss is twice the mean of its last 100 values, three times in a row: the rule in general use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.baseline import ClassicWindow
from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.finding_type import Instability
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import CLIP_AT_1, LOWER_RATE_2_TO_5, Action, Finding, Remedy, Severity


@dataclass(frozen=True, slots=True)
class AboveMeanFacts(Facts):
    """A loss that is high by the classic rule: above a multiple of the mean of the values before."""

    kind: ClassVar[str] = "divergence_classic"
    metrics = ("loss", "mean", "steps")

    loss: float
    """The loss, in its unit."""
    mean: float
    """Mean of the values before, in the unit of the loss."""
    values: int
    """Number of these values."""
    steps: int
    """Number of high losses in a row."""
    threshold: float
    """From how many times the mean on a loss is high."""

    def sentence(self, step: int, unit: str = "step", /) -> str:
        """``loss 5.1 at step 400; above 2 times the mean of the 100 values before (2.3) for 3 steps.``"""
        return (
            f"loss {self.loss:.4g} at {unit} {step}; above {self.threshold:g} times the mean of the {self.values} "
            f"values before ({self.mean:.4g}) for {self.steps} {unit}s."
        )


@dataclass(frozen=True, slots=True)
class DivergenceClassic(Detector):
    """The loss is {divergence_threshold} times the mean of its last {window} values, {consecutive_steps} times in a
    row.

    What it sees: {consecutive_steps} losses in a row above {divergence_threshold} times the mean of the {window} values
    before each, once there are {least_values}. A run of such losses is one finding.

    Why it matters: a diverging run rarely recovers by itself, and every further step is lost.

    What to try: restart from a checkpoint before the divergence; lower the learning rate by a factor of 2 to 5;
    lengthen the warm-up; clip gradients.

    When it is wrong: losses at or below zero are not judged. A slow divergence, or one below that ratio, is missed;
    most are.

    Reference: llm-foundry, KillLossSpike
    """

    divergence_threshold: float = 2.0
    """Multiple of the mean above which a loss is too high."""
    consecutive_steps: int = 3
    """Number of high losses in a row that make a divergence."""
    window: int = 100
    """Number of values in the mean."""
    least_values: int = 20
    """Minimum number of values before anything is judged."""

    kind = "divergence"
    instability = Instability.HARMFUL
    order = 400
    on_request = True
    rule = "classic"
    quantities = ("loss",)
    severities = (Severity.CRITICAL,)
    remedies = (
        Remedy(Action.RESTART_BEFORE_STEP),
        LOWER_RATE_2_TO_5,
        Remedy(Action.LENGTHEN_WARM_UP),
        CLIP_AT_1,
    )
    state_type = ClassicWindow

    def step(self, state: ClassicWindow, point: Point) -> tuple[ClassicWindow, Finding | None]:
        """Look at the next loss."""
        if not point.finite:
            return state, None
        event = None
        if len(state.values) >= self.least_values:
            mean = state.mean()
            high = mean > 0 and point.value > self.divergence_threshold * mean
            state.run = state.run + 1 if high else 0
            if high and state.run == self.consecutive_steps:
                facts = AboveMeanFacts(point.value, mean, len(state.values), state.run, self.divergence_threshold)
                event = self.finding(point, Severity.CRITICAL, facts)
        state.take(point.value, self.window)
        return state, event
