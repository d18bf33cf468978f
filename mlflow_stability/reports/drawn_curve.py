"""Prepare the curves of a diagnosis for drawing, with characters or on a page."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.vocabulary.result import CurveReading, Diagnosis, Sketch

MIN_LOG_RATIO = 10.0
"""From this ratio of the highest to the lowest value on, the scale is logarithmic, so that a spike leaves the rest
readable."""


@dataclass(frozen=True, slots=True, eq=False)
class DrawnCurve:
    metric: str
    steps: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    first: int
    last: int
    final: float
    """The last value; of a stretch of several, its middle."""
    bottom: float
    """The lowest finite value, or NaN, as `top`."""
    top: float
    logarithmic: bool

    @property
    def finite(self) -> NDArray[np.bool_]:
        """Which stretches have a finite value."""
        return np.isfinite(self.low) & np.isfinite(self.high)


def drawn_curves(diagnosis: Diagnosis) -> list[DrawnCurve]:
    readings = {(reading.metric, reading.first_step): reading for reading in diagnosis.curves}
    drawable = [sketch for sketch in diagnosis.sketches if sketch.steps]
    return [_drawn_curve(sketch, readings.get((sketch.metric, sketch.steps[0]))) for sketch in drawable]


def _drawn_curve(sketch: Sketch, reading: CurveReading | None) -> DrawnCurve:
    steps = np.asarray(sketch.steps, np.int64)
    low, high = np.asarray(sketch.low, np.float64), np.asarray(sketch.high, np.float64)
    finite = np.isfinite(low) & np.isfinite(high)
    bottom, top = (float(low[finite].min()), float(high[finite].max())) if finite.any() else (np.nan, np.nan)
    first, last = int(steps.min()), int(steps.max())
    at_end = int(steps.argmax())
    final = float(sketch.low[at_end]) / 2 + float(sketch.high[at_end]) / 2  # NaN between both infinities
    if reading is not None:  # the sketch has only the first step of its last stretch
        last, final = max(last, reading.last_step), reading.last if np.isfinite(final) else final
    return DrawnCurve(
        sketch.metric,
        steps,
        low,
        high,
        first,
        last,
        final,
        bottom,
        top,
        bool(bottom > 0 and top / MIN_LOG_RATIO > bottom),
    )
