"""Says when a layer gets no gradient at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.detectors.streak import Streak
from mlflow_stability.vocabulary.event import Event, Severity


@dataclass(frozen=True, slots=True)
class DeadLayer:
    """A layer gets no gradient at all.

    What it sees: a layer whose gradient norm is exactly zero 100 times in a row. One finding until it gets a gradient
    again.

    Why it matters: the layer does not learn: it is disconnected from the loss, frozen by mistake, or all of its units
    are dead.

    What to try: look whether its output reaches the loss; look for `detach` and `no_grad`; look whether its units are
    all inactive; lower the learning rate.

    When it is wrong: layers that take part in few batches: experts, heads of other tasks, embeddings of rare words.

    Reference: Lu et al., Dying ReLU and initialization (arXiv:1903.06733)
    """

    steps: int = 100
    """How many zeros in a row."""

    kind: ClassVar[str] = "dead_layer"
    rule: ClassVar[str] = ""
    quantities: ClassVar[tuple[str, ...]] = ("grad_norm",)
    compared: ClassVar[tuple[str, ...]] = ()
    across_places: ClassVar[bool] = False
    severities: ClassVar[tuple[Severity, ...]] = (Severity.INFO,)
    experimental: ClassVar[bool] = True
    remedies: ClassVar[tuple[str, ...]] = (
        "Look whether the layer's output reaches the loss.",
        "Look for a detach, a no_grad or frozen parameters.",
        "Look for units that are never active.",
    )

    def begin(self) -> Streak:
        """Start afresh, knowing nothing."""
        return Streak()

    def step(self, state: Streak, point: Point) -> tuple[Streak, Event | None]:
        """Look at the next norm of a layer."""
        if point.place == "" or point.place.startswith("track_") or not point.finite:
            return state, None
        bad = point.value == 0.0
        if not state.reaches(self.steps, bad=bad):
            return state, None
        return state, finding(
            self,
            point,
            Severity.INFO,
            f"The gradient of {point.place} has been zero for {state.length} measurements to step {point.step}.",
            {"grad_norm": point.value, "measurements": float(state.length)},
        )
