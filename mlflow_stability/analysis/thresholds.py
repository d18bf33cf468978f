"""Chooses the detectors that judge, from the arguments of a public function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.sensitivity import at_sensitivity
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.catalog import choose_detectors, default_detectors
from mlflow_stability.vocabulary.settings import ACCEPTS


def asked_detectors(detectors: Iterable[Detector | str] | None, sensitivity: str) -> Sequence[Detector] | None:
    """The detectors that judge; None for the default ones.

    Of `detectors`, names follow the sensitivity, and objects stay as they are.
    """
    sensitivity = ACCEPTS["sensitivity"].check("sensitivity", sensitivity)
    if detectors is None:
        return None if sensitivity == "normal" else at_sensitivity(default_detectors(), sensitivity)
    given = ACCEPTS["detectors"].check("detectors", detectors)
    if sensitivity != "normal" and not any(isinstance(detector, str) for detector in given):
        raise SettingsError("Give detectors= or sensitivity=, not both: each sets the thresholds.")
    return choose_detectors(given, sensitivity)
