"""Says when the loss is twice the mean of its last 100 values, three times in a row: the rule in general use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.classic_window import ClassicWindow
from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.detectors.whole_model import ALL
from mlflow_stability.vocabulary.event import Event, Severity


@dataclass(frozen=True, slots=True)
class DivergenceClassic:
    """The loss is twice the mean of its last 100 values, three times in a row.

    What it sees: 3 losses in a row above 2.0 times the mean of the 100 before each, from the 21st value on. A run of
    them is one finding.

    Why it matters: a diverging run seldom comes back by itself, and every further step is lost.

    What to try: go back to a state before it; lower the learning rate 2-5 times; warm up longer; clip the gradients.

    When it is wrong: it says nothing to losses at or below zero, and nothing of a divergence that is slow or that ends
    below twice the level, as most do.

    Reference: llm-foundry, KillLossSpike
    """

    divergence_threshold: float = 2.0
    """The multiple of the mean above which a loss is too high."""
    consecutive_steps: int = 3
    """How many in a row make a divergence."""
    window: int = 100
    """How many values the mean is of."""
    least_values: int = 20
    """From how many values on anything is judged."""

    kind: ClassVar[str] = "divergence"
    rule: ClassVar[str] = "classic"
    quantities: ClassVar[tuple[str, ...]] = ("loss",)
    compared: ClassVar[tuple[str, ...]] = ()
    across_places: ClassVar[bool] = False
    places: ClassVar[str] = ALL
    severities: ClassVar[tuple[Severity, ...]] = (Severity.CRITICAL,)
    experimental: ClassVar[bool] = False
    remedies: ClassVar[tuple[str, ...]] = (
        "Go back to a state from before it.",
        "Lower the learning rate 2-5 times.",
        "Warm the learning rate up longer.",
        "Clip gradients at 1.0.",
    )

    def begin(self) -> ClassicWindow:
        """Start afresh, knowing nothing."""
        return ClassicWindow()

    def step(self, state: ClassicWindow, point: Point) -> tuple[ClassicWindow, Event | None]:
        """Look at the next loss."""
        if not point.finite:
            return state, None
        event = None
        if len(state.values) >= self.least_values:
            mean = state.mean()
            high = mean > 0 and point.value > self.divergence_threshold * mean
            state.run = state.run + 1 if high else 0
            if high and state.run == self.consecutive_steps:
                event = finding(
                    self,
                    point,
                    Severity.CRITICAL,
                    f"loss is {point.value:.4g} at step {point.step} and has been above {self.divergence_threshold:g} "
                    f"times the mean of the {len(state.values)} before ({mean:.4g}) for {state.run} steps.",
                    {"loss": point.value, "mean": mean, "steps": float(state.run)},
                )
        state.take(point.value, self.window)
        return state, event
