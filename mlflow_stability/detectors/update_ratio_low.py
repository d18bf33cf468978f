"""Says when updates are too small to matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.detectors.streak import Streak
from mlflow_stability.vocabulary.event import Event, Severity


@dataclass(frozen=True, slots=True)
class UpdateRatioLow:
    """The updates are too small to matter.

    What it sees: updates of less than a ten-millionth of the weights' norm, 10 times in a row. One finding until they
    are larger.

    Why it matters: such updates are lost in the rounding of most number formats: in bf16 they change nothing at all.

    What to try: raise the learning rate 5-10 times; keep the weights in fp32; look for frozen parameters.

    When it is wrong: the end of a schedule that goes to zero.

    Reference: Zamirai et al., Revisiting BFloat16 training (arXiv:2010.06192)
    """

    lowest: float = 1e-7
    """The ratio of update to weights below which it is low."""
    steps: int = 10
    """How many times in a row."""

    kind: ClassVar[str] = "update_ratio_low"
    rule: ClassVar[str] = ""
    quantities: ClassVar[tuple[str, ...]] = ("update_ratio",)
    compared: ClassVar[tuple[str, ...]] = ()
    across_places: ClassVar[bool] = False
    severities: ClassVar[tuple[Severity, ...]] = (Severity.INFO,)
    experimental: ClassVar[bool] = True
    remedies: ClassVar[tuple[str, ...]] = (
        "Raise the learning rate 5-10 times.",
        "Keep the weights in fp32.",
        "Look for frozen parameters.",
    )

    def begin(self) -> Streak:
        """Start afresh, knowing nothing."""
        return Streak()

    def step(self, state: Streak, point: Point) -> tuple[Streak, Event | None]:
        """Look at the next ratio."""
        if not point.finite:
            return state, None
        bad = point.value < self.lowest
        if not state.reaches(self.steps, bad=bad):
            return state, None
        return state, finding(
            self,
            point,
            Severity.INFO,
            f"Updates are {point.value:.2g} of the weights at step {point.step}; {self.lowest:g} is low.",
            {"update_ratio": point.value, "limit": self.lowest},
        )
