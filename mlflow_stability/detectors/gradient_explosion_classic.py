"""Says when the gradient norm is above 100, or three deviations above its last 100 values: the rule in general use."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.classic_window import ClassicWindow
from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.detectors.whole_model import WHOLE
from mlflow_stability.vocabulary.event import Event, Severity


@dataclass(frozen=True, slots=True)
class GradientExplosionClassic:
    """The gradient norm is above 100, or three deviations above its last 100 values.

    What it sees: a norm above 100, or above the mean plus 3 standard deviations of the 100 before it, from the 21st
    value on. Norms that are too high in a row are one finding.

    Why it matters: one such step can throw the weights far from where they were.

    What to try: clip the gradients at 1.0; lower the learning rate 2-5 times; look at the loss of this step.

    When it is wrong: often: norms are skewed, so that three deviations are reached every hundred steps, and there are
    healthy models whose norm is always above 100. The rule without `:classic` was made for that.

    Reference: Pascanu et al. (arXiv:1211.5063)
    """

    largest: float = 100.0
    """Above this norm it has exploded, whatever came before."""
    deviations: float = 3.0
    """How many standard deviations above the mean are too high."""
    window: int = 100
    """How many values the mean is of."""
    least_values: int = 20
    """From how many values on the mean is asked."""

    kind: ClassVar[str] = "gradient_explosion"
    rule: ClassVar[str] = "classic"
    quantities: ClassVar[tuple[str, ...]] = ("grad_norm",)
    compared: ClassVar[tuple[str, ...]] = ()
    across_places: ClassVar[bool] = False
    places: ClassVar[str] = WHOLE
    severities: ClassVar[tuple[Severity, ...]] = (Severity.WARNING,)
    experimental: ClassVar[bool] = False
    remedies: ClassVar[tuple[str, ...]] = (
        "Clip gradients at 1.0.",
        "Lower the learning rate 2-5 times.",
        "Look at the loss and the batch of this step.",
    )

    def begin(self) -> ClassicWindow:
        """Start afresh, knowing nothing."""
        return ClassicWindow()

    def step(self, state: ClassicWindow, point: Point) -> tuple[ClassicWindow, Event | None]:
        """Look at the next norm."""
        if not point.finite:
            return state, None
        limit = self.largest
        if len(state.values) >= self.least_values:
            mean = state.mean()
            by_deviation = mean + self.deviations * state.deviation(mean)
            limit = limit if math.isnan(by_deviation) else min(limit, by_deviation)
        high = point.value > limit
        event = None
        if high and not state.run:
            event = finding(
                self,
                point,
                Severity.WARNING,
                f"grad_norm is {point.value:.4g} at step {point.step}; the limit is {limit:.4g}.",
                {"grad_norm": point.value, "limit": limit},
            )
        state.run = state.run + 1 if high else 0
        state.take(point.value, self.window)
        return state, event
