"""Says when the loss lies three deviations above its last 100 values: the rule in general use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.classic_window import ClassicWindow
from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.detectors.whole_model import ALL
from mlflow_stability.vocabulary.event import Event, Severity


@dataclass(frozen=True, slots=True)
class LossSpikeClassic:
    """The loss lies three deviations above its last 100 values.

    What it sees: a loss above the mean plus 3 standard deviations of the 100 before it, from the 21st value on. Losses
    that are too high in a row are one finding.

    Why it matters: most spikes pass, but a loss that leaps often has usually taken steps that were too large.

    What to try: lower the learning rate 2-5 times; clip the gradients at 1.0; look at the batch.

    When it is wrong: often: plain noise is that high once in 700 steps, and each spike widens the deviation that the
    next one is measured by. The rule without `:classic` was made for that.

    Reference: Shewhart, Economic control of quality of manufactured product (1931)
    """

    deviations: float = 3.0
    """How many standard deviations above the mean are too high."""
    window: int = 100
    """How many values the mean is of."""
    least_values: int = 20
    """From how many values on anything is judged."""

    kind: ClassVar[str] = "loss_spike"
    rule: ClassVar[str] = "classic"
    quantities: ClassVar[tuple[str, ...]] = ("loss",)
    compared: ClassVar[tuple[str, ...]] = ()
    across_places: ClassVar[bool] = False
    places: ClassVar[str] = ALL
    severities: ClassVar[tuple[Severity, ...]] = (Severity.WARNING,)
    experimental: ClassVar[bool] = False
    remedies: ClassVar[tuple[str, ...]] = (
        "Lower the learning rate 2-5 times.",
        "Clip gradients at 1.0.",
        "Look at the batch of this step.",
    )

    def begin(self) -> ClassicWindow:
        """Start afresh, knowing nothing."""
        return ClassicWindow()

    def step(self, state: ClassicWindow, point: Point) -> tuple[ClassicWindow, Event | None]:
        """Look at the next loss."""
        if not point.finite:
            return state, None
        event = None
        high = False
        if len(state.values) >= self.least_values:
            mean = state.mean()
            limit = mean + self.deviations * state.deviation(mean)
            high = point.value > limit
            if high and not state.run:
                event = finding(
                    self,
                    point,
                    Severity.WARNING,
                    f"loss is {point.value:.4g} at step {point.step}; the mean of the {len(state.values)} before is "
                    f"{mean:.4g}, the limit {limit:.4g}.",
                    {"loss": point.value, "mean": mean, "limit": limit},
                )
        state.run = state.run + 1 if high else 0
        state.take(point.value, self.window)
        return state, event
