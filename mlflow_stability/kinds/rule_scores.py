"""How sure the findings of whole curves are, and how severe they may be therefore.

In: a rule and what it found. Out: the same episodes with a score: the highest factor by which all thresholds of the
rule can be multiplied so that it still finds them. Guarantees: a finding that is CRITICAL would be found at low
sensitivity, too; what is less sure is at most a WARNING.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from mlflow_stability.curves.curves import RunCurves
from mlflow_stability.detectors.sensitivity import moved
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.result import Finding, most_severe
from mlflow_stability.vocabulary.sensitivity import MAX_SCORE


def with_scores(found: list[Finding], rule: Rule, factor: float, curves: RunCurves) -> list[Finding]:
    """The findings of a rule whose thresholds are already so many times the usual ones."""
    if not found or not rule.by_sensitivity:
        return found
    again: dict[float, list[Finding]] = {}

    def still(one: Finding, beyond: float) -> bool:
        if beyond not in again:
            again[beyond] = moved(rule, beyond).find(curves)
        return any(_same(one, each) for each in again[beyond])

    return [_scored(one, factor * _highest(one, still)) for one in found]


def _highest(one: Finding, still: Callable[[Finding, float], bool]) -> float:
    low, high = 0.0, math.log(MAX_SCORE)
    if still(one, MAX_SCORE):
        return MAX_SCORE
    for _ in range(6):  # halvings of the interval: then the score is known to 7 %
        middle = (low + high) / 2
        low, high = (middle, high) if still(one, math.exp(middle)) else (low, middle)
    return math.exp(low)


def _scored(one: Finding, score: float) -> Finding:
    return replace(one, score=round(min(MAX_SCORE, score), 2))


def _same(one: Finding, other: Finding) -> bool:
    alike = (one.kind, one.metric, one.attempt) == (other.kind, other.metric, other.attempt)
    return alike and one.start <= other.end and other.start <= one.end


def no_worse_than_sure(episodes: Iterable[Finding]) -> tuple[Finding, ...]:
    """The episodes, CRITICAL only where they are sure."""
    return tuple(replace(each, severity=min(each.severity, most_severe(each.score))) for each in episodes)
