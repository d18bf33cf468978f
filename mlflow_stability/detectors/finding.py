"""Turns what a detector found at a point into an event."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.sensitivity import factor_of
from mlflow_stability.vocabulary.facts.facts import Facts
from mlflow_stability.vocabulary.result.event import Event, Severity, most_severe
from mlflow_stability.vocabulary.sensitivity import MOST, SCORE


def finding(
    detector: Detector,
    point: Point,
    severity: Severity,
    stated: Facts | str,
    evidence: Mapping[str, float],
) -> Event:
    """The event: where and when are the point's, kind, score and remedies the detector's.

    ``severity`` is how bad it is; it is lowered where that is not sure. ``stated``: what is known, or a sentence of a
    type that has no facts.
    """
    score = score_of(detector, evidence)
    return Event(
        point.step,
        detector.kind,
        severity_of(detector, evidence, severity),
        stated if isinstance(stated, str) else stated.sentence(point.step),
        place=point.place,
        evidence=dict(evidence) if score is None else {**evidence, SCORE: score},
        remedies=detector.remedies,
        attempt=point.attempt,
        time=point.time,
        facts=None if isinstance(stated, str) else stated,
    )


def score_of(detector: Detector, evidence: Mapping[str, float]) -> float | None:
    """The score, from what the detector says itself; None where it compares with no noise and no level."""
    beyond = _beyond(detector, evidence)
    if beyond is None or not beyond > 0:
        return None
    return round(min(MOST, max(1.0, beyond) * factor_of(detector)), 2)


def severity_of(detector: Detector, evidence: Mapping[str, float], worst: Severity = Severity.CRITICAL) -> Severity:
    """The severity of a finding that is as bad as `worst`, by how sure it is."""
    score = score_of(detector, evidence)
    return worst if score is None else min(worst, most_severe(score))


def _beyond(detector: Detector, evidence: Mapping[str, float]) -> float | None:
    """By how many times the detector's own threshold is exceeded, as it says itself or as its numbers show."""
    if SCORE in evidence:
        return evidence[SCORE]
    value, limit, level = evidence.get(detector.judged, math.nan), evidence.get("limit"), evidence.get("level")
    if limit:
        return _ratio(evidence.get("z", evidence.get("errors", value)), limit)
    threshold, rise = getattr(detector, "threshold", None), getattr(detector, "smallest_rise", None)
    if threshold and evidence.get("z"):
        return _ratio(evidence["z"], threshold)
    level = evidence.get("best", level)
    if rise is not None and rise > 1 and level is not None and level > 0 and value > 0:
        return abs(math.log(value / level)) / math.log(rise)
    return None


def _ratio(value: float, limit: float) -> float | None:
    """How far beyond a limit, above it or below it; None for numbers that say nothing."""
    if not (math.isfinite(value) and value > 0 and limit > 0):
        return None
    return max(value / limit, limit / value)
