"""Turns what a detector found at a point into an event."""

from __future__ import annotations

from collections.abc import Mapping

from mlflow_stability.detectors.engine.detector import Detector, Point
from mlflow_stability.detectors.score import score_of, severity_of
from mlflow_stability.vocabulary.facts.facts import Facts
from mlflow_stability.vocabulary.result.event import Event, Severity
from mlflow_stability.vocabulary.sensitivity import SCORE


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
