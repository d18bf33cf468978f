"""Decides which detectors look at a training, from what the user asked for."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import cast

from mlflow_stability.detectors.catalog import default_detectors, named
from mlflow_stability.detectors.engine import Detector
from mlflow_stability.detectors.inside import SdrCollapse, SdrLowDiversity
from mlflow_stability.detectors.loss import DivergenceAhead, DivergenceClassic
from mlflow_stability.detectors.thresholds import as_asked
from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.settings import Settings

_NEEDED = ("kind", "rule", "quantities", "compared", "across_places", "begin", "step")


def chosen_detectors(settings: Settings) -> tuple[Detector, ...]:
    """Those that the settings name; SettingsError for a name that there is not."""
    asked = settings.detectors
    how = (settings.loss_spike_threshold, settings.gradient_explosion_threshold, settings.sensitivity, settings.rule)
    if asked is None:
        usual = (_tuned(each, settings.sdr_collapse_threshold) for each in default_detectors())
        detectors = as_asked(usual, *how)
    else:
        detectors = tuple(one for each in asked for one in _one(each, *how))
    ahead = DivergenceAhead.kind
    if getattr(settings.rollback, "act_ahead", None) is not None and all(each.kind != ahead for each in detectors):
        detectors = (*detectors, *as_asked(named([ahead]), *how))
    if settings.divergence_threshold is None:
        return detectors
    own = DivergenceClassic(settings.divergence_threshold, settings.consecutive_divergence_steps)
    return (*(each for each in detectors if not isinstance(each, DivergenceClassic)), own)


def _tuned(detector: Detector, unique: float) -> Detector:
    """A detector of sparse codes with the user's own idea of a collapse; any other as it is."""
    if isinstance(detector, SdrCollapse):
        return replace(detector, unique=unique)
    if isinstance(detector, SdrLowDiversity):
        return replace(detector, lowest=unique, highest=max(detector.highest, min(2 * unique, 1.0)))
    return detector


def _one(
    asked: object, loss_spike: float | None, gradient_explosion: float | None, sensitivity: str, rule: str
) -> tuple[Detector, ...]:
    """A detector by its name, as asked for otherwise; or one with thresholds of the user's own, as it is."""
    if isinstance(asked, str):
        return as_asked(named([asked]), loss_spike, gradient_explosion, sensitivity, rule)
    if isinstance(asked, type) or not (is_dataclass(asked) and all(hasattr(asked, each) for each in _NEEDED)):
        raise SettingsError(
            f"detectors= takes names such as 'loss_spike' or detectors such as LossSpike(), got {asked!r}."
        )
    return (cast(Detector, asked),)
