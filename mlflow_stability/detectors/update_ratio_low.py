"""Says when updates are too small to matter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.detectors.loss_fall import LossFalls
from mlflow_stability.detectors.place_streaks import PlaceStreaks
from mlflow_stability.detectors.whole_model import ALL
from mlflow_stability.vocabulary.event import Event, Severity
from mlflow_stability.vocabulary.signal import of_the_whole


@dataclass(slots=True)
class Ratios:
    """What has been seen so far."""

    small: PlaceStreaks = field(default_factory=PlaceStreaks)
    step: int = -1
    """The step whose learning rates have been seen."""
    time: float = 0.0
    """And when; those of another training in that step come later."""
    rate: float = 0.0
    highest_rate: float = 0.0
    falls: LossFalls = field(default_factory=LossFalls)


@dataclass(frozen=True, slots=True)
class UpdateRatioLow:
    """The updates are too small to matter.

    What it sees: updates of less than a ten-millionth of the weights' norm, of the whole model or of a layer, in 5
    measurements in a row, while the learning rate is at least a hundredth of its highest and the loss at least a
    hundredth of where it began. A layer that was not updated at all does not count. One finding until all are larger.

    Why it matters: such updates are lost in the rounding of most number formats: in bf16 they change nothing at all.

    What to try: raise the learning rate 5-10 times; keep the weights in fp32; look for frozen parameters.

    When it is wrong: the end of a schedule that goes to zero. It spoke in none of 117 healthy trainings of 39 kinds
    (110,000 measured values).

    Reference: Zamirai et al., Revisiting BFloat16 training (arXiv:2010.06192)
    """

    lowest: float = 1e-7
    """The ratio of update to weights below which it is low."""
    rounds: int = 5
    """In how many measurements in a row."""
    share_of_rate: float = 0.01
    """Below this share of its highest, the learning rate is meant to be small, and so are updates."""

    kind: ClassVar[str] = "update_ratio_low"
    rule: ClassVar[str] = ""
    quantities: ClassVar[tuple[str, ...]] = ("loss", "learning_rate", "update_ratio")
    compared: ClassVar[tuple[str, ...]] = ()
    across_places: ClassVar[bool] = True
    places: ClassVar[str] = ALL
    severities: ClassVar[tuple[Severity, ...]] = (Severity.WARNING,)
    experimental: ClassVar[bool] = False
    remedies: ClassVar[tuple[str, ...]] = (
        "Raise the learning rate 5-10 times.",
        "Keep the weights in fp32.",
        "Look for frozen parameters.",
    )

    def begin(self) -> Ratios:
        """Start afresh, knowing nothing."""
        return Ratios()

    def step(self, state: Ratios, point: Point) -> tuple[Ratios, Event | None]:
        """Look at the next loss, learning rate or ratio."""
        if not point.finite:
            return state, None
        if point.quantity == "loss":
            state.falls.take(point.place, point.value)
            return state, None
        if point.quantity == "learning_rate":
            # The highest of the step's groups counts, but of trainings side by side each for itself.
            is_same = point.step == state.step and not point.time > state.time
            state.rate = max(state.rate, point.value) if is_same else point.value
            state.step, state.time, state.highest_rate = point.step, point.time, max(state.highest_rate, point.value)
            return state, None
        if point.value == 0.0 and not of_the_whole(point.place):
            return state, None  # a layer that took no part
        meant = state.rate < state.highest_rate * self.share_of_rate or (state.step >= 0 and state.rate == 0)
        low = point.value < self.lowest and not meant and not state.falls.learnt()
        if not state.small.reaches(point.place, self.rounds, bad=low):
            return state, None
        where = "" if of_the_whole(point.place) else f" of {point.place}"
        return state, finding(
            self,
            point,
            self.severities[-1],
            f"Updates{where} are {point.value:.2g} of the weights at step {point.step}; {self.lowest:g} is low.",
            {"update_ratio": point.value, "limit": self.lowest},
        )
