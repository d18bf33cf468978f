"""How bad a finding is."""

from __future__ import annotations

import enum

from mlflow_stability.vocabulary.sensitivity import FACTORS


class Severity(enum.IntEnum):
    """How bad it is; ordered, so that ``severity >= Severity.WARNING`` reads as it should."""

    INFO = 10
    """Worth knowing; changes no verdict."""
    WARNING = 20
    """Look at it."""
    CRITICAL = 30
    """The training is broken or lost."""


def most_severe(score: float) -> Severity:
    """How severe a finding so sure may be: CRITICAL only where it is found at low sensitivity, too."""
    return Severity.CRITICAL if score >= FACTORS["low"] else Severity.WARNING
