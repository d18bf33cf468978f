"""Says when the weights leap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.detectors.streak import Streak
from mlflow_stability.vocabulary.event import Event, Severity


@dataclass(frozen=True, slots=True)
class WeightSpike:
    """The norm of the weights leapt.

    What it sees: a norm of the weights 10 times above its level. One finding until it is back.

    Why it matters: weights hardly move in a step; ten-fold means that an update went wrong, or that something else
    wrote into them.

    What to try: go back to a state from before it; look at the update and the gradient of this step; lower the
    learning rate.

    When it is wrong: weights that start at or near zero; weights that are loaded or reset in mid-training.

    Reference: Molybog et al., A theory on Adam instability (arXiv:2304.09871)
    """

    smallest_rise: float = 10.0
    """The least norm as a multiple of its level."""
    steps: int = 1
    """How many times in a row."""

    kind: ClassVar[str] = "weight_spike"
    rule: ClassVar[str] = ""
    quantities: ClassVar[tuple[str, ...]] = ("param_norm",)
    compared: ClassVar[tuple[str, ...]] = ("param_norm",)
    across_places: ClassVar[bool] = False
    severities: ClassVar[tuple[Severity, ...]] = (Severity.INFO,)
    experimental: ClassVar[bool] = True
    remedies: ClassVar[tuple[str, ...]] = (
        "Go back to a state from before it.",
        "Look at the gradient norm and the update of this step.",
        "Lower the learning rate.",
    )

    def begin(self) -> Streak:
        """Start afresh, knowing nothing."""
        return Streak()

    def step(self, state: Streak, point: Point) -> tuple[Streak, Event | None]:
        """Look at the next norm."""
        if not point.finite or not point.scale or point.center <= 0:
            return state, None
        bad = point.value >= point.center * self.smallest_rise
        if not state.reaches(self.steps, bad=bad):
            return state, None
        return state, finding(
            self,
            point,
            Severity.INFO,
            f"The norm of the weights is {point.value:.4g} at step {point.step}, from a level of {point.center:.4g}.",
            {"param_norm": point.value, "level": point.center},
        )
