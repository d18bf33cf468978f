"""Apply the rules for whole curves, as the detectors that were asked for say, and score what they find.

A rule judges for the detector of its kind: who asks for other kinds, or for another way of finding that kind
(``loss_spike:classic``), does not get it. The score of a finding is the highest factor for all thresholds of its rule
at which it is still found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from mlflow_stability.curves.curves import RunCurves
from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.detectors.sensitivity import factor_of, only_scaled, scale_thresholds
from mlflow_stability.kinds.catalog import EXPERIMENTAL, RULES, SEEN_FROM_OUTSIDE
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.judging import CLASSIC, MAX_SCORE
from mlflow_stability.vocabulary.result import Finding, Severity, most_severe
from mlflow_stability.vocabulary.run import RUN_STATUS

WHERE_JUDGED_LIVE = tuple(rule for rule in RULES if not rule.only_without_detectors)
"""The rules for runs that detectors watched: they show what only a whole curve does."""
OF_VALIDATIONS = tuple(rule for rule in RULES if rule.of_validations)
"""The rules for validation losses of such runs, which the script logs itself and no detector saw."""
HALVINGS = 6  # number of halvings in the search for a score, which is then known to 7 %


def apply_rules(rules: Iterable[type[Rule]], curves: RunCurves, detectors: Sequence[Detector]) -> list[Finding]:
    """Return what these rules find, of the kinds that were asked for, with scores."""
    findings: list[Finding] = []
    for rule_type in rules:
        rule, factor = rule_type(), 1.0
        detector = _detector_of(rule, detectors)
        if detector is not None:
            factor = factor_of(detector)
            rule = scale_thresholds(rule, factor) if only_scaled(detector) else rule.like(detector)
        findings += _with_scores(of_detectors(rule.find(curves), detectors), rule, factor, curves)
    return [
        replace(finding, experimental=True, severity=Severity.INFO) if finding.kind in EXPERIMENTAL else finding
        for finding in findings
    ]


def of_detectors(findings: Iterable[Finding], detectors: Sequence[Detector]) -> list[Finding]:
    """Return those of the kinds that detectors look for; what no detector finds, as the end of a process, is kept."""
    kinds = {detector.kind for detector in detectors if not detector.rule}
    kinds |= {*RUN_STATUS, *(cls.kind for cls in SEEN_FROM_OUTSIDE)}
    return [finding for finding in findings if finding.kind in kinds]


def changed_kinds(detectors: Sequence[Detector]) -> set[str]:
    """Return the kinds with a threshold of the user's own, or with a classic rule alone."""
    own = {
        detector.kind
        for detector in detectors
        if isinstance(detector, FindingType) and not detector.rule and not only_scaled(detector)
    }
    classic = {detector.kind for detector in detectors if detector.rule == CLASSIC}
    return own | (classic - {detector.kind for detector in detectors if detector.rule != CLASSIC})


def cap_severities(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings, CRITICAL only where their score allows it: they would be found at low sensitivity, too."""
    return tuple(replace(finding, severity=min(finding.severity, most_severe(finding.score))) for finding in findings)


def _detector_of(rule: Rule, detectors: Sequence[Detector]) -> Detector | None:
    """Return the detector of the rule's kind, unless a user wrote it and it has the methods of one alone."""
    of_kind = (detector for detector in detectors if detector.kind == rule.kind and not detector.rule)
    return next((detector for detector in of_kind if isinstance(detector, FindingType)), None)


def _with_scores(findings: list[Finding], rule: Rule, factor: float, curves: RunCurves) -> list[Finding]:
    """Score the findings of a rule whose thresholds were already scaled by a factor."""
    if not findings or not rule.by_sensitivity:
        return findings

    @cache
    def at_factor(beyond: float) -> list[Finding]:
        return scale_thresholds(rule, beyond).find(curves)

    def highest_factor(finding: Finding) -> float:
        low, high = 0.0, math.log(MAX_SCORE)
        if any(_touch(finding, other) for other in at_factor(MAX_SCORE)):
            return MAX_SCORE
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            still = any(_touch(finding, other) for other in at_factor(math.exp(middle)))
            low, high = (middle, high) if still else (low, middle)
        return math.exp(low)

    return [replace(finding, score=round(min(MAX_SCORE, factor * highest_factor(finding)), 2)) for finding in findings]


def _touch(finding: Finding, other: Finding) -> bool:
    """Whether two findings are of one kind and curve, and overlap."""
    alike = (finding.kind, finding.metric, finding.attempt) == (other.kind, other.metric, other.attempt)
    return alike and finding.start <= other.end and other.start <= finding.end
