"""The detectors of a list of names and detectors, as every function with `detectors=` takes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from math import isnan
from typing import cast

from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.sensitivity import at_sensitivity
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.catalog import default_detectors, name_of, named
from mlflow_stability.vocabulary.judging_rule import CLASSIC, DEFAULT, DETECTORS_TAKEN

_NEEDED = ("kind", "rule", "quantities", "compared", "across_places", "begin", "step")


def chosen(asked: Iterable[object], sensitivity: str = "normal") -> tuple[Detector, ...]:
    """The detectors of a list: those given by name at this sensitivity, the others as they are.

    "default" stands for those that look unless others are asked for. Of them, a detector beside it replaces the one of
    its name, and a classic rule all of its kind. Raises ``SettingsError`` for what is no detector, for a threshold that
    is no number, and for two of one name.
    """
    asked = tuple(asked)
    detectors: list[Detector] = []
    for given in asked:
        if given == DEFAULT:
            continue
        new: tuple[Detector, ...]
        if not isinstance(given, str):
            new = (_checked(given),)
        elif "(" in given:
            new = tuple(map(_checked, named([given])))
        else:
            new = at_sensitivity(named([given]), sensitivity)
        detectors += [detector for detector in new if detector not in detectors]
    names = [name_of(detector) for detector in detectors]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SettingsError(f"detectors= has {twice} twice, with different thresholds: give one of them.")
    if DEFAULT not in asked:
        return tuple(detectors)
    usual = at_sensitivity(default_detectors(), sensitivity)
    return (*(detector for detector in usual if not _is_replaced(detector, detectors)), *detectors)


def _is_replaced(usual: Detector, others: Sequence[Detector]) -> bool:
    """Whether one of the others judges in its place."""
    of_kind = [other for other in others if other.kind == usual.kind]
    return any(other.rule in (usual.rule, CLASSIC) for other in of_kind)


def _checked(given: object) -> Detector:
    """A detector with thresholds of the user's own, as it is."""
    if isinstance(given, type) or not (is_dataclass(given) and all(hasattr(given, name) for name in _NEEDED)):
        raise SettingsError(f"detectors= takes {DETECTORS_TAKEN}; got {given!r}.")
    for field in fields(given):
        value = getattr(given, field.name)
        if isinstance(field.default, bool | int | float) and (not isinstance(value, int | float) or isnan(value)):
            raise SettingsError(f"{type(given).__name__}({field.name}=...) must be a number; got {value!r}.")
    return cast(Detector, given)
