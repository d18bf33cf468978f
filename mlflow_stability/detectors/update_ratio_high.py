"""Says when updates are large beside the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.detectors.streak import Streak
from mlflow_stability.vocabulary.event import Event, Severity


@dataclass(frozen=True, slots=True)
class UpdateRatioHigh:
    """The updates are large beside the weights.

    What it sees: updates of more than a tenth of the weights' norm, 10 times in a row. One finding until they are
    smaller.

    Why it matters: a step that changes weights by a tenth leaves little of what they held; healthy training is nearer
    to a thousandth.

    What to try: lower the learning rate 5-10 times; warm up longer.

    When it is wrong: the first steps of a training, and weights that start at zero.

    Reference: https://karpathy.github.io/2019/04/25/recipe/; You et al., LAMB (arXiv:1904.00962)
    """

    highest: float = 0.1
    """The ratio of update to weights above which it is high."""
    steps: int = 10
    """How many times in a row."""

    kind: ClassVar[str] = "update_ratio_high"
    rule: ClassVar[str] = ""
    quantities: ClassVar[tuple[str, ...]] = ("update_ratio",)
    compared: ClassVar[tuple[str, ...]] = ()
    across_places: ClassVar[bool] = False
    severities: ClassVar[tuple[Severity, ...]] = (Severity.INFO,)
    experimental: ClassVar[bool] = True
    remedies: ClassVar[tuple[str, ...]] = (
        "Lower the learning rate 5-10 times.",
        "Warm the learning rate up longer.",
    )

    def begin(self) -> Streak:
        """Start afresh, knowing nothing."""
        return Streak()

    def step(self, state: Streak, point: Point) -> tuple[Streak, Event | None]:
        """Look at the next ratio."""
        if not point.finite:
            return state, None
        bad = point.value > self.highest
        if not state.reaches(self.steps, bad=bad):
            return state, None
        return state, finding(
            self,
            point,
            Severity.INFO,
            f"Updates are {point.value:.2g} of the weights at step {point.step}; {self.highest:g} is high.",
            {"update_ratio": point.value, "limit": self.highest},
        )
