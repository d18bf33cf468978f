"""Move the thresholds of detectors and rules together: how much evidence a finding needs.

A class declares in ``by_sensitivity`` which of its thresholds move, and how; what is no matter of degree, such as a
NaN, has none. ``python -m tests.benchmarks rule_recall`` measures what each sensitivity finds, and how often wrongly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.vocabulary.judging import FACTORS

_T = TypeVar("_T", bound=FindingType)
_APPLY: Mapping[str, Callable[[float, float], float]] = {
    "times": lambda value, factor: value * factor,
    "power": lambda value, factor: value**factor,
    "inverse": lambda value, factor: value / factor,
}


def scale_thresholds(judgement: _T, factor: float) -> _T:
    """Return the detector or rule with stricter thresholds (factor above 1) or looser ones."""
    if factor == 1.0 or not judgement.by_sensitivity:
        return judgement
    changes: dict[str, Any] = {}
    for name, how in judgement.by_sensitivity.items():
        value, apply = getattr(judgement, name), _APPLY[how]
        changes[name] = (
            tuple(apply(part, factor) for part in value) if isinstance(value, tuple) else apply(value, factor)
        )
    return replace(judgement, **changes)


def at_sensitivity(judgements: Iterable[_T], sensitivity: str) -> tuple[_T, ...]:
    return tuple(scale_thresholds(judgement, FACTORS[sensitivity]) for judgement in judgements)


def factor_of(judgement: FindingType) -> float:
    """Return the factor of a detector's thresholds, as the first that it declares shows it."""
    for name, how in judgement.by_sensitivity.items():
        own, usual = float(getattr(judgement, name)), float(getattr(type(judgement)(), name))
        if own == usual or own <= 0:
            return 1.0
        if how == "power":
            return math.log(own) / math.log(usual) if own > 1 else 1.0
        return own / usual if how == "times" else usual / own
    return 1.0


def only_scaled(judgement: FindingType) -> bool:
    """Whether a sensitivity explains all of its thresholds, so that none was set alone."""
    alike = scale_thresholds(type(judgement)(), factor_of(judgement))
    pairs = [(getattr(judgement, field.name), getattr(alike, field.name)) for field in fields(judgement)]
    return all(math.isclose(a, b) if isinstance(a, float) else a == b for a, b in pairs)
