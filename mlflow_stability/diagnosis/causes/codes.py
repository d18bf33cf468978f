"""Causes that the settings of modules with sparse codes show: a temperature that left its range."""

from __future__ import annotations

import numpy as np

from mlflow_stability.curves.curves import Curve
from mlflow_stability.detectors.finding_type import Symptom
from mlflow_stability.diagnosis.causes.check import CauseDocumentation, Check, CheckResult, is_it, is_not
from mlflow_stability.diagnosis.causes.context import EpisodeContext, shown
from mlflow_stability.kinds.inside.sdr_temperature import SdrTemperature

DETECTOR = SdrTemperature()


def temperature_check(around: EpisodeContext) -> CheckResult:
    """Whether the temperature of sparse codes left its range at the last measurement before, or at the next one."""
    curves = [curve for curve in around.of(DETECTOR.kind) if len(curve.steps) > 1]
    for curve in curves:
        at = _left_range(curve, around.latest)
        if at is not None:
            return _said(around, curve, at)
    return is_not("temperature of sparse codes: in range") if curves else CheckResult()


def _left_range(curve: Curve, latest: int) -> int | None:
    """The measurement that is the first one out of range; the one before it is no later than `latest`."""
    first, values = float(curve.values[0]), curve.values
    low, high = DETECTOR.lowest, DETECTOR.highest
    if first > 0:
        low, high = max(low, first / DETECTOR.drift), min(high, first * DETECTOR.drift)
    outside = np.isfinite(values) & ((values < low) | (values > high))
    begins = np.flatnonzero(outside[1:] & ~outside[:-1]) + 1
    known = begins[curve.steps[begins - 1] <= latest]
    if not len(known):
        return None
    at = int(known[-1])
    last = min(int(np.searchsorted(curve.steps, latest, side="left")), len(values) - 1)
    return at if bool(outside[at : last + 1].all()) else None  # else it was back in range by then


def _said(around: EpisodeContext, curve: Curve, at: int) -> CheckResult:
    before, after = float(curve.values[at - 1]), float(curve.values[at])
    then, now = int(curve.steps[at - 1]), int(curve.steps[at])
    earlier = curve.values[:at][np.isfinite(curve.values[:at])]
    is_set = float(earlier.max()) == float(earlier.min())  # one that is learned changes with each step
    where = f" of {curve.place}" if curve.place else ""
    return is_it(
        "sdr_temperature",
        f"The temperature of the sparse codes{where} went from {shown(before)} to {shown(after)} between {around.unit} "
        f"{then} and {around.unit} {now}.",
        f"it was the same in {len(earlier)} measurements before" if is_set else "",
        since=then if now > around.latest else now,
        certainty="likely" if is_set or now <= around.latest else "possible",
        place=curve.place,
    )


CAUSES = (
    CauseDocumentation(
        "sdr_temperature",
        "The temperature of sparse codes left its range.",
        "It was below {DETECTOR.lowest} or above {DETECTOR.highest}, or {DETECTOR.drift} times from its first "
        "value, in the last measurement before or in the next one. In the next one it is likely only if it was "
        "constant before.",
        "A temperature that is learned follows a training that diverges for another reason.",
        DETECTOR.remedies,
        phrase="temperature of sparse codes",
    ),
)
CHECKS = (Check(temperature_check, {Symptom.RISING: 7, Symptom.NON_FINITE: 55}, frozenset({"sdr_temperature"})),)
