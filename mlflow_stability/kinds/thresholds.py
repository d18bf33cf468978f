"""Builds the usual detectors with the sensitivity, the rule and the thresholds that somebody asked for.

In: what was asked for. Out: detectors. Guarantees: a threshold that was given is the whole rule, so that a lower one
finds all that a higher one finds; what was not asked for is as usual.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from math import isnan
from typing import cast

from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.sensitivity import at_sensitivity
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.catalog import ON_REQUEST, default_detectors, name_of, named
from mlflow_stability.kinds.gradients.gradient_explosion import GradientExplosion, GradientExplosionClassic
from mlflow_stability.kinds.loss.loss_spike import LossSpike, LossSpikeClassic
from mlflow_stability.vocabulary.judging_rule import CLASSIC, DETECTORS_TAKEN, ROBUST

_NEEDED = ("kind", "rule", "quantities", "compared", "across_places", "begin", "step")
_CLASSIC = {each.kind: each for each in ON_REQUEST if each.rule == CLASSIC}


def detectors_with(
    loss_spike: float | None = None,
    gradient_explosion: float | None = None,
    sensitivity: str = "normal",
    rule: str = ROBUST,
) -> tuple[Detector, ...] | None:
    """The default detectors at this sensitivity, by this rule, with these thresholds in σ; None for the usual ones."""
    if loss_spike is None and gradient_explosion is None and (sensitivity, rule) == ("normal", ROBUST):
        return None
    return as_asked(default_detectors(), loss_spike, gradient_explosion, sensitivity, rule)


def chosen(
    asked: Iterable[object],
    loss_spike: float | None = None,
    gradient_explosion: float | None = None,
    sensitivity: str = "normal",
    rule: str = ROBUST,
) -> tuple[Detector, ...]:
    """The detectors of a list of names and detectors: those given as names as asked for otherwise, the others as they
    are. Raises ``SettingsError`` for what is neither, for a threshold that is no number, and for two of one name.
    """
    detectors: list[Detector] = []
    for given in asked:
        if isinstance(given, str) and "(" in given:
            new = tuple(map(_checked, named([given])))
        elif isinstance(given, str):
            new = as_asked(named([given]), loss_spike, gradient_explosion, sensitivity, rule)
        else:
            new = (_checked(given),)
        detectors += [detector for detector in new if detector not in detectors]
    names = [name_of(detector) for detector in detectors]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SettingsError(f"detectors= has {twice} twice, with different thresholds: give one of them.")
    return tuple(detectors)


def _checked(given: object) -> Detector:
    """A detector with thresholds of the user's own, as it is."""
    if isinstance(given, type) or not (is_dataclass(given) and all(hasattr(given, name) for name in _NEEDED)):
        raise SettingsError(f"detectors= takes {DETECTORS_TAKEN}; got {given!r}.")
    for field in fields(given):
        value = getattr(given, field.name)
        if isinstance(field.default, bool | int | float) and (not isinstance(value, int | float) or isnan(value)):
            raise SettingsError(f"{type(given).__name__}({field.name}=...) must be a number; got {value!r}.")
    return cast(Detector, given)


def as_asked(
    detectors: Iterable[Detector],
    loss_spike: float | None = None,
    gradient_explosion: float | None = None,
    sensitivity: str = "normal",
    rule: str = ROBUST,
) -> tuple[Detector, ...]:
    """These detectors at this sensitivity, those of spikes, explosions and divergences by this rule and threshold."""
    moved = at_sensitivity(detectors, sensitivity)
    chosen = _by_classic_rules(moved) if rule == CLASSIC else moved
    return tuple(_with(each, loss_spike, gradient_explosion) for each in chosen)


def _by_classic_rules(detectors: Iterable[Detector]) -> tuple[Detector, ...]:
    """The classic rule in the place of each detector of its type, and of all that look for the same in other ways."""
    chosen: list[Detector] = []
    for each in detectors:
        classic = _CLASSIC.get(each.kind)
        if classic is None:
            chosen.append(each)
        elif not any(isinstance(one, classic) for one in chosen):
            chosen.append(classic())
    return tuple(chosen)


def _with(detector: Detector, loss_spike: float | None, gradient_explosion: float | None) -> Detector:
    """The detector with a threshold of the user's own: each excursion above it is a finding, and nothing else is."""
    if isinstance(detector, LossSpike) and loss_spike is not None:
        calm = min(LossSpike().calm_below, loss_spike)
        return replace(LossSpike(), threshold=loss_spike, calm_below=calm, calm_steps=1, threshold_alone=True)
    if isinstance(detector, GradientExplosion) and gradient_explosion is not None:
        calm = min(GradientExplosion().calm_below, gradient_explosion)
        own = replace(GradientExplosion(), threshold=gradient_explosion, calm_below=calm)
        return replace(own, calm_steps=1, threshold_alone=True)
    if isinstance(detector, LossSpikeClassic) and loss_spike is not None:
        return replace(detector, deviations=loss_spike)
    if isinstance(detector, GradientExplosionClassic) and gradient_explosion is not None:
        return replace(detector, deviations=gradient_explosion)
    return detector
