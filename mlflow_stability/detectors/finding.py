"""Turns what a detector found at a point into a finding."""

from __future__ import annotations

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.detectors.sensitivity import factor_of
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result.finding import Finding, Source, Span, Where
from mlflow_stability.vocabulary.result.severity import Severity, most_severe
from mlflow_stability.vocabulary.sensitivity import MAX_SCORE


def finding(detector: Detector, point: Point, severity: Severity, facts: Facts) -> Finding:
    """The finding: where and when are the point's, kind, score and remedies the detector's.

    ``severity`` is how bad it is; it is lowered where that is not sure.
    """
    score = score_of(detector, facts)
    return Finding(
        detector.kind,
        severity if score is None else min(severity, most_severe(score)),
        Span(point.step, point.step, point.step),
        Where(point.place, attempt=point.attempt),
        facts,
        detector.remedies,
        Source.DETECTOR,
        MAX_SCORE if score is None else score,
        point.time,
    )


def score_of(detector: Detector, facts: Facts) -> float | None:
    """The score; None where nothing is compared with noise or a level."""
    beyond = facts.exceeds
    if beyond is None or not beyond > 0:
        return None
    return round(min(MAX_SCORE, max(1.0, beyond) * factor_of(detector)), 2)


def severity_of(detector: Detector, facts: Facts, worst: Severity = Severity.CRITICAL) -> Severity:
    """The severity of a finding that is as bad as `worst`, by how sure it is."""
    score = score_of(detector, facts)
    return worst if score is None else min(worst, most_severe(score))
