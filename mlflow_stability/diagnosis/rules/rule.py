"""What a judgement of whole curves looks like from outside.

A rule is a frozen dataclass whose fields are its thresholds, as detectors are; but it sees a curve from its first to
its last point, and so can tell a loss that never came back from one that did. Rules serve where only a few points were
logged, too few for a detector that learns what is normal as it goes.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from mlflow_stability.diagnosis.curves.curves import RunCurves
from mlflow_stability.vocabulary.result.episode import Episode
from mlflow_stability.vocabulary.result.event import Severity


class Rule(Protocol):
    """One judgement. Its class documents it: what it sees, why it matters, what to try, when it is wrong."""

    kind: ClassVar[str]
    """The name of what it finds, the same as that of the detector that looks for it step by step."""
    severities: ClassVar[tuple[Severity, ...]]
    """How bad its findings can be, the mildest first."""
    remedies: ClassVar[tuple[str, ...]]
    """What to try, most likely first."""

    def find(self, curves: RunCurves) -> list[Episode]:
        """What it sees in the curves of one run."""
        ...
