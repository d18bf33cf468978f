"""What a judgement of whole curves looks like from outside.

A rule is a frozen dataclass whose fields are its thresholds, as detectors are; but it sees a curve from its first to
its last point, and so can tell a loss that never came back from one that did. Rules serve where only a few points were
logged, too few for a detector that learns what is normal as it goes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from mlflow_stability.curves.curves import Curve, RunCurves
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Finding, Severity, Source, Span, Where


@dataclass(frozen=True, slots=True)
class Rule(FindingType, ABC):
    """One judgement. Its class documents it: what it sees, why it matters, what to try, when it is wrong.

    Its type is that of the detector that looks for the same step by step; it is found in this package by itself.
    """

    only_without_detectors: ClassVar[bool] = False
    """Whether it is asked only of runs that no detector watched; the others show what only the whole curve does."""
    of_validations: ClassVar[bool] = False
    """Whether it is asked of the validation losses of a watched run, which no detector sees."""

    def like(self, detector: Detector) -> Rule:
        """The same rule with the thresholds that a user gave the detector of its type.

        A threshold in σ or a share moves by as much as the detector's; a ratio to a level is taken as it is, or as a
        minimum where the rule asks for more. Sensitivities are not asked here: they move detectors and rules alike.
        """
        del detector
        return self

    @abstractmethod
    def find(self, curves: RunCurves) -> list[Finding]:
        """What it sees in the curves of one run."""

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
        """The finding of these facts, from its first step to its last.

        ``peak``: the step at which it was worst, where that is not the first. ``count``: of how many points it is made.
        ``of``: the type of finding that it is, where that is not the rule's own.
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
