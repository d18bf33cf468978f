"""Says when a loss or a gradient norm is not a number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.detectors.detector import Point
from mlflow_stability.detectors.finding import finding
from mlflow_stability.detectors.nonfinite import SKIPPED, NonFinite, before, watch
from mlflow_stability.detectors.whole_model import WHOLE
from mlflow_stability.vocabulary.event import Event, Severity


@dataclass(frozen=True, slots=True)
class NanDetected:
    """A loss or a gradient norm became NaN.

    What it sees: the first NaN of the loss or of the gradient norm after finite values; one finding until all are
    finite again. A gradient that a loss scaler threw away does not count.

    Why it matters: the next optimizer step writes NaN into every weight it touches, and no later step repairs that.

    What to try: find the first module that puts out NaN; look at the inputs; lower the learning rate; clip the
    gradients; train in bf16 instead of fp16.

    When it is wrong: a script that passes NaN to ``backward`` on purpose, to mark a batch without targets.

    Reference: IEEE 754; https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    """

    kind: ClassVar[str] = "nan_detected"
    rule: ClassVar[str] = ""
    quantities: ClassVar[tuple[str, ...]] = ("skipped_steps", "loss", "grad_norm")
    compared: ClassVar[tuple[str, ...]] = ()
    across_places: ClassVar[bool] = False
    places: ClassVar[str] = WHOLE
    severities: ClassVar[tuple[Severity, ...]] = (Severity.CRITICAL,)
    experimental: ClassVar[bool] = False
    remedies: ClassVar[tuple[str, ...]] = (
        "Find the first module whose output is NaN.",
        "Look at the inputs of this step: empty targets, a division by zero, the logarithm of zero.",
        "Lower the learning rate 2-5 times, or clip gradients at 1.0.",
        "Train in bf16 instead of fp16.",
    )

    def begin(self) -> NonFinite:
        """Start afresh, knowing nothing."""
        return NonFinite()

    def step(self, state: NonFinite, point: Point) -> tuple[NonFinite, Event | None]:
        """Look at the next value."""
        if point.finite and not state.ill and point.quantity != SKIPPED:
            return state, None  # nearly always
        new, found = watch(state, point, is_bad=math.isnan(point.value))
        if not found:
            return new, None
        return new, finding(
            self,
            point,
            Severity.CRITICAL,
            f"{point.quantity} is NaN at step {point.step}; {before(point)}.",
            {point.quantity: point.value},
        )
