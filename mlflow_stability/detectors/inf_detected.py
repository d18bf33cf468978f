"""Says when a loss or a gradient norm is infinite."""

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
class InfDetected:
    """A loss or a gradient norm became infinite.

    What it sees: the first infinity of the loss or of the gradient norm after finite values; one finding until all are
    finite again. A gradient that a loss scaler threw away does not count.

    Why it matters: an overflow comes before most NaNs: infinity minus infinity, or times zero, is NaN one operation
    later, and then every weight.

    What to try: lower the learning rate; clip the gradients; look for an exponential or a division without a bound;
    train in bf16 instead of fp16, or with a lower loss scale.

    When it is wrong: a log-likelihood that is minus infinity on purpose for an impossible sample.

    Reference: IEEE 754; https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    """

    kind: ClassVar[str] = "inf_detected"
    rule: ClassVar[str] = ""
    quantities: ClassVar[tuple[str, ...]] = ("skipped_steps", "loss", "grad_norm")
    compared: ClassVar[tuple[str, ...]] = ()
    across_places: ClassVar[bool] = False
    places: ClassVar[str] = WHOLE
    severities: ClassVar[tuple[Severity, ...]] = (Severity.CRITICAL,)
    experimental: ClassVar[bool] = False
    remedies: ClassVar[tuple[str, ...]] = (
        "Lower the learning rate 2-5 times, or clip gradients at 1.0.",
        "Look for an exponential, a division or a logarithm without a bound in the first infinite module.",
        "Train in bf16 instead of fp16, or start with a loss scale of 1024.",
    )

    def begin(self) -> NonFinite:
        """Start afresh, knowing nothing."""
        return NonFinite()

    def step(self, state: NonFinite, point: Point) -> tuple[NonFinite, Event | None]:
        """Look at the next value."""
        if point.finite and not state.ill and point.quantity != SKIPPED:
            return state, None  # nearly always
        new, found = watch(state, point, is_bad=math.isinf(point.value))
        if not found:
            return new, None
        return new, finding(
            self,
            point,
            Severity.CRITICAL,
            f"{point.quantity} is {point.value} at step {point.step}; {before(point)}.",
            {point.quantity: point.value},
        )
