"""Turns what a detector found at a point into an event."""

from __future__ import annotations

from collections.abc import Mapping

from mlflow_stability.detectors.detector import Detector, Point
from mlflow_stability.vocabulary.event import Event, Severity


def finding(detector: Detector, point: Point, severity: Severity, message: str, evidence: Mapping[str, float]) -> Event:
    """The event: where and when are the point's, kind and remedies the detector's."""
    return Event(
        point.step,
        detector.kind,
        severity,
        message,
        place=point.place,
        evidence=dict(evidence),
        remedies=detector.remedies,
        attempt=point.attempt,
        time=point.time,
    )
