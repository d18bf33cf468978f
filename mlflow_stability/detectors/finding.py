"""Turns what a detector found at a point into an event."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.sensitivity import factor_of
from mlflow_stability.vocabulary.facts import Facts, rises_beyond, times_beyond
from mlflow_stability.vocabulary.result.event import Event, Severity, most_severe
from mlflow_stability.vocabulary.sensitivity import MOST, SCORE


def finding(
    detector: Detector,
    point: Point,
    severity: Severity,
    stated: Facts | str,
    evidence: Mapping[str, float] | None = None,
) -> Event:
    """The event: where and when are the point's, kind, score and remedies the detector's.

    ``severity`` is how bad it is; it is lowered where that is not sure. ``stated``: what is known, or a sentence of a
    type that has no facts. ``evidence``: the numbers, where they are not those of the facts.
    """
    known: Facts | Mapping[str, float] = evidence or {}
    numbers = dict(evidence or {})
    if evidence is None and isinstance(stated, Facts):
        known, numbers = stated, stated.numbers()
    score = score_of(detector, known)
    return Event(
        point.step,
        detector.kind,
        severity_of(detector, known, severity),
        stated if isinstance(stated, str) else stated.sentence(point.step),
        place=point.place,
        evidence=numbers if score is None else {**numbers, SCORE: score},
        remedies=detector.remedies,
        attempt=point.attempt,
        time=point.time,
        facts=None if isinstance(stated, str) else stated,
    )


def score_of(detector: Detector, known: Facts | Mapping[str, float]) -> float | None:
    """The score; None where nothing is compared with noise or a level."""
    beyond = known.exceeds if isinstance(known, Facts) else _beyond(detector, known)
    if beyond is None or not beyond > 0:
        return None
    return round(min(MOST, max(1.0, beyond) * factor_of(detector)), 2)


def severity_of(
    detector: Detector, known: Facts | Mapping[str, float], worst: Severity = Severity.CRITICAL
) -> Severity:
    """The severity of a finding that is as bad as `worst`, by how sure it is."""
    score = score_of(detector, known)
    return worst if score is None else min(worst, most_severe(score))


def _beyond(detector: Detector, evidence: Mapping[str, float]) -> float | None:
    """By how many times the detector's own threshold is exceeded, as it says itself or as its numbers show."""
    if SCORE in evidence:
        return evidence[SCORE]
    value, limit, level = evidence.get(detector.judged, math.nan), evidence.get("limit"), evidence.get("level")
    if limit:
        return times_beyond(evidence.get("z", evidence.get("errors", value)), limit)
    threshold, rise = getattr(detector, "threshold", None), getattr(detector, "smallest_rise", None)
    if threshold and evidence.get("z"):
        return times_beyond(evidence["z"], threshold)
    level = evidence.get("best", level)
    return None if rise is None or level is None else rises_beyond(value, level, rise)
