"""Chooses the detectors that judge, from the arguments of a public function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlflow_stability.detectors.detector import Detector
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.thresholds import chosen, detectors_with
from mlflow_stability.vocabulary.argument import number, objects, one_of
from mlflow_stability.vocabulary.judging_rule import DETECTORS_TAKEN, JUDGING_RULES, ROBUST
from mlflow_stability.vocabulary.sensitivity import SENSITIVITIES

_DETECTORS = objects(DETECTORS_TAKEN)["takes"]
_SENSITIVITY = one_of(*SENSITIVITIES)["takes"]
_RULE = one_of(*JUDGING_RULES)["takes"]
_THRESHOLD = number(above=0, what="of σ", optional=True)["takes"]


def asked_detectors(
    detectors: Iterable[Detector | str] | None,
    sensitivity: str,
    rule: str = ROBUST,
    loss_spike_threshold: float | None = None,
    gradient_explosion_threshold: float | None = None,
) -> Sequence[Detector] | None:
    """The detectors that judge; None for the usual ones.

    Of `detectors`, names follow the other arguments, and objects stay as they are.
    """
    how = (
        _THRESHOLD.checked("loss_spike_threshold", loss_spike_threshold),
        _THRESHOLD.checked("gradient_explosion_threshold", gradient_explosion_threshold),
        _SENSITIVITY.checked("sensitivity", sensitivity),
        _RULE.checked("rule", rule),
    )
    if detectors is None:
        return detectors_with(*how)
    given = _DETECTORS.checked("detectors", detectors)
    if detectors_with(*how) is not None and not any(isinstance(detector, str) for detector in given):
        own = "sensitivity=" if sensitivity != "normal" else "rule=" if rule != ROBUST else "thresholds"
        raise SettingsError(f"Give detectors= or {own}, not both: each sets the thresholds.")
    return chosen(given, *how)
