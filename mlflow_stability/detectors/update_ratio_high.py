"""Says when updates are large beside the weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.detectors.place_streaks import PlaceStreaks
from mlflow_stability.detectors.whole_model import ALL
from mlflow_stability.vocabulary.event import Event, Severity
from mlflow_stability.vocabulary.signal import of_the_whole


@dataclass(slots=True)
class Ratios:
    """What has been seen so far."""

    whole: PlaceStreaks = field(default_factory=PlaceStreaks)
    layers: PlaceStreaks = field(default_factory=PlaceStreaks)
    first_step: int | None = None


@dataclass(frozen=True, slots=True)
class UpdateRatioHigh:
    """The updates are large beside the weights.

    What it sees: updates of more than a tenth of the weights' norm, of the whole model in 3 measurements in a row, or
    of a layer in 10, after the first 10 steps. One finding until all are smaller.

    Why it matters: a step that changes weights by a tenth leaves little of what they held; healthy training is nearer
    to a thousandth.

    What to try: lower the learning rate 5-10 times; warm up longer.

    When it is wrong: the first steps of a training, and weights that start at zero. It spoke in none of 117 healthy
    trainings of 39 kinds with layers measured every 100 steps, and every 10 in 3, all of one kind: tables of rare rows
    under Adagrad.

    Reference: https://karpathy.github.io/2019/04/25/recipe/; You et al., LAMB (arXiv:1904.00962)
    """

    highest: float = 0.1
    """The ratio of update to weights above which it is high."""
    rounds: int = 3
    """In how many measurements of the whole model in a row, ..."""
    rounds_of_layer: int = 10
    """... or of a layer."""
    first_steps: int = 10
    """How many first steps do not count: weights that start at or near zero move far in them."""

    kind: ClassVar[str] = "update_ratio_high"
    rule: ClassVar[str] = ""
    quantities: ClassVar[tuple[str, ...]] = ("update_ratio",)
    compared: ClassVar[tuple[str, ...]] = ()
    across_places: ClassVar[bool] = True
    places: ClassVar[str] = ALL
    severities: ClassVar[tuple[Severity, ...]] = (Severity.WARNING,)
    experimental: ClassVar[bool] = False
    remedies: ClassVar[tuple[str, ...]] = (
        "Lower the learning rate 5-10 times.",
        "Warm the learning rate up longer.",
    )

    def begin(self) -> Ratios:
        """Start afresh, knowing nothing."""
        return Ratios()

    def step(self, state: Ratios, point: Point) -> tuple[Ratios, Event | None]:
        """Look at the next ratio."""
        if state.first_step is None:
            state.first_step = point.step
        if not point.finite or point.step < state.first_step + self.first_steps:
            return state, None
        whole = of_the_whole(point.place)
        streaks, rounds = (state.whole, self.rounds) if whole else (state.layers, self.rounds_of_layer)
        if not streaks.reaches(point.place, rounds, bad=point.value > self.highest):
            return state, None
        if not whole and state.whole.said is not None:
            return state, None  # of the whole model it was said already
        where = "" if whole else f" of {point.place}"
        return state, finding(
            self,
            point,
            self.severities[-1],
            f"Updates{where} are {point.value:.2g} of the weights at step {point.step}; {self.highest:g} is high, "
            f"{_usual(point.step)}.",
            {"update_ratio": point.value, "limit": self.highest},
        )


def _usual(step: int) -> str:
    low, high = ("1e-3", "1e-2") if step <= 1000 else ("1e-4", "1e-3") if step <= 10_000 else ("1e-5", "1e-4")
    return f"{low} to {high} is common by then"
