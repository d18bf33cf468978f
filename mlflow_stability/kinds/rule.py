"""Base class of rules, which judge whole curves.

As detectors, rules are frozen dataclasses whose fields are their thresholds. A rule sees a curve from its first to its
last point, so that it can tell a loss that recovered from one that did not. Logs with a few points have too few for a
detector that learns what is normal as it goes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Finding, Severity, Source, Span, Where


def present(findings: Iterable[Finding | None]) -> list[Finding]:
    return [finding for finding in findings if finding is not None]


@dataclass(frozen=True, slots=True)
class Rule(FindingType, ABC):
    """One judgement. Its class documents what it sees, and when it is wrong; the rest is that of its kind.

    Its `kind` is that of the detector that looks for the same step by step.
    """

    only_without_detectors: ClassVar[bool] = False
    """Whether it judges only runs that no detector watched; the others find what only the whole curve shows."""
    of_validations: ClassVar[bool] = False
    """Whether it judges the validation losses of a watched run, which no detector sees."""

    def like(self, detector: Detector) -> Rule:
        """Return this rule with the thresholds that a user gave the detector of its kind.

        A threshold in σ or a share is scaled as the detector's; a ratio to a level is taken as it is, or as a minimum
        where the rule asks for more. Sensitivities do not come here: they scale detectors and rules alike.
        """
        del detector
        return self

    @abstractmethod
    def find(self, curves: RunCurves) -> list[Finding]:
        """Return what it finds in the curves of one run."""

    def finding(
        self,
        curve: Curve,
        severity: Severity,
        facts: Facts,
        start: int,
        end: int,
        *,
        peak: int | None = None,
        recovered: bool | None = False,
        count: int = 1,
        of: type[FindingType] | None = None,
    ) -> Finding:
        """Return the finding of these facts, from its first step to its last.

        ``peak`` is the step at which it was worst, where that is not the first, ``count`` the number of its points, and
        ``of`` its type, where that is not the rule's own.
        """
        kind = of or type(self)
        return Finding(
            kind.kind,
            severity,
            Span(int(start), int(start if peak is None else peak), int(end), recovered),
            Where(curve.place, curve.name, curve.attempt),
            facts,
            kind.remedies,
            Source.WHOLE_CURVE,
            count=count,
        )
