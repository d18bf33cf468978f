"""Says when some layers get far larger gradients than others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.detectors.streak import Streak
from mlflow_stability.vocabulary.event import Event, Severity


@dataclass(slots=True)
class Layers:
    """The layers of the step that is being seen."""

    step: int = -1
    count: int = 0
    smallest: float = 0.0
    largest: float = 0.0
    smallest_place: str = ""
    largest_place: str = ""
    streak: Streak = field(default_factory=Streak)


@dataclass(frozen=True, slots=True)
class GradientImbalance:
    """Some layers get far larger gradients than others.

    What it sees: gradient norms of layers that lie more than 100 times apart, in 5 measurements in a row. Layers
    without any gradient are another matter. One finding until they are closer.

    Why it matters: one learning rate cannot suit all of them: where it is right for the large ones, the small ones
    stand still.

    What to try: look at the initialisation; normalise before each block; add residual connections; an optimizer that
    adapts each layer's step (Adam, LAMB).

    When it is wrong: models whose layers differ in size by design, with an optimizer that evens it out.

    Reference: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks (2010)
    """

    ratio: float = 100.0
    """How many times the largest norm of a layer may be above the smallest."""
    steps: int = 5
    """In how many measurements in a row."""
    fewest: int = 3
    """Of how many layers at least."""

    kind: ClassVar[str] = "gradient_imbalance"
    rule: ClassVar[str] = ""
    quantities: ClassVar[tuple[str, ...]] = ("grad_norm",)
    compared: ClassVar[tuple[str, ...]] = ()
    across_places: ClassVar[bool] = True
    severities: ClassVar[tuple[Severity, ...]] = (Severity.INFO,)
    experimental: ClassVar[bool] = True
    remedies: ClassVar[tuple[str, ...]] = (
        "Look at the initialisation.",
        "Normalise before each block, or add residual connections.",
        "Use an optimizer that adapts each layer's step.",
    )

    def begin(self) -> Layers:
        """Start afresh, knowing nothing."""
        return Layers()

    def step(self, state: Layers, point: Point) -> tuple[Layers, Event | None]:
        """Look at the norm of the next layer; a measurement is complete when the next one begins."""
        if point.place == "" or point.place.startswith("track_") or not point.finite or point.value <= 0:
            return state, None
        if point.step == state.step:
            self._add(state, point)
            return state, None
        bad = state.count >= self.fewest and state.largest > state.smallest * self.ratio
        reached = state.step >= 0 and state.streak.reaches(self.steps, bad=bad)
        event = self._imbalance(state, point) if reached else None
        state.step, state.count = point.step, 0
        self._add(state, point)
        return state, event

    def _add(self, state: Layers, point: Point) -> None:
        if not state.count or point.value < state.smallest:
            state.smallest, state.smallest_place = point.value, point.place
        if not state.count or point.value > state.largest:
            state.largest, state.largest_place = point.value, point.place
        state.count += 1

    def _imbalance(self, state: Layers, point: Point) -> Event:
        return finding(
            self,
            point._replace(place=state.smallest_place, step=state.step),
            Severity.INFO,
            f"Gradient norms of layers lie {state.largest / max(state.smallest, 5e-324):,.0f} times apart at step "
            f"{state.step}: {state.largest:.2g} in {state.largest_place}, {state.smallest:.2g} in "
            f"{state.smallest_place}.",
            {"largest": state.largest, "smallest": state.smallest, "layers": float(state.count)},
        )
