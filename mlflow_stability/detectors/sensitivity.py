"""One operating point for all detectors and rules: how much evidence a finding needs.

In: a detector or a rule, and a factor. Out: the same one with stricter (factor above 1) or looser thresholds. A class
declares which of its thresholds move, and how, in ``by_sensitivity``; what is no matter of degree, such as a NaN, has
none. What each sensitivity finds and how often it is wrong is measured by ``python -m tests.benchmarks rule_recall``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from mlflow_stability.detectors.finding_type import FindingType, Moves
from mlflow_stability.vocabulary.sensitivity import FACTORS

_T = TypeVar("_T", bound=FindingType)
_APPLY: Mapping[str, Callable[[float, float], float]] = {
    "times": lambda value, factor: value * factor,
    "power": lambda value, factor: value**factor,
    "inverse": lambda value, factor: value / factor,
}


def moved(judgement: _T, factor: float) -> _T:
    """The detector or rule with every threshold that it declares moved by this factor."""
    declared = judgement.by_sensitivity
    if factor == 1.0 or not declared:
        return judgement
    changes = {name: _one(getattr(judgement, name), how, factor) for name, how in declared.items()}
    return replace(judgement, **changes)


def at_sensitivity(judgements: Iterable[_T], sensitivity: str) -> tuple[_T, ...]:
    """All of them at this sensitivity."""
    return tuple(moved(each, FACTORS[sensitivity]) for each in judgements)


def factor_of(judgement: FindingType) -> float:
    """The factor by which a detector differs from its defaults, as the first threshold that it declares shows it."""
    declared = judgement.by_sensitivity
    for name, how in declared.items():
        own, usual = float(getattr(judgement, name)), float(getattr(type(judgement)(), name))
        if own == usual or own <= 0:
            return 1.0
        if how == "power":
            return math.log(own) / math.log(usual) if own > 1 else 1.0
        return own / usual if how == "times" else usual / own
    return 1.0


def only_moved(judgement: FindingType) -> bool:
    """Whether all of its thresholds are the usual ones at some sensitivity, so that nobody set one alone."""
    alike = moved(type(judgement)(), factor_of(judgement))
    pairs = [(getattr(judgement, each.name), getattr(alike, each.name)) for each in fields(judgement)]
    return all(math.isclose(a, b) if isinstance(a, float) else a == b for a, b in pairs)


def _one(value: Any, how: Moves, factor: float) -> Any:
    if isinstance(value, tuple):
        return tuple(_APPLY[how](each, factor) for each in value)
    return _APPLY[how](value, factor)
