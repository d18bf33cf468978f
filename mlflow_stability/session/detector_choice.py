"""Decides which detectors look at a training, from what the user asked for."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import cast

from mlflow_stability.detectors.catalog import default_detectors, named
from mlflow_stability.detectors.engine.detector import Detector
from mlflow_stability.detectors.inside.sdr_collapse import SdrCollapse, SdrLowDiversity
from mlflow_stability.detectors.loss.divergence import DivergenceClassic
from mlflow_stability.detectors.sensitivity import at_sensitivity
from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.settings import Settings

_NEEDED = ("kind", "rule", "quantities", "compared", "across_places", "begin", "step")


def chosen_detectors(settings: Settings) -> tuple[Detector, ...]:
    """Those that the settings name; SettingsError for a name that there is not."""
    asked = settings.detectors
    detectors = (
        at_sensitivity(
            (_tuned(each, settings.sdr_collapse_threshold) for each in default_detectors()), settings.sensitivity
        )
        if asked is None
        else tuple(_one(each, settings.sensitivity) for each in asked)
    )
    if settings.divergence_threshold is None:
        return detectors
    return (*detectors, DivergenceClassic(settings.divergence_threshold, settings.consecutive_divergence_steps))


def _tuned(detector: Detector, unique: float) -> Detector:
    """A detector of sparse codes with the user's own idea of a collapse; any other as it is."""
    if isinstance(detector, SdrCollapse):
        return replace(detector, unique=unique)
    if isinstance(detector, SdrLowDiversity):
        return replace(detector, lowest=unique, highest=max(detector.highest, min(2 * unique, 1.0)))
    return detector


def _one(asked: object, sensitivity: str) -> Detector:
    """A detector by its name, at this sensitivity; or one with thresholds of the user's own, as it is."""
    if isinstance(asked, str):
        return at_sensitivity(named([asked]), sensitivity)[0]
    if isinstance(asked, type) or not (is_dataclass(asked) and all(hasattr(asked, each) for each in _NEEDED)):
        raise SettingsError(
            f"detectors= takes names such as 'loss_spike' or detectors such as LossSpike(), got {asked!r}."
        )
    return cast(Detector, asked)
