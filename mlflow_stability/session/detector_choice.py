"""Decides which detectors look at a training, and when, from what the user asked for."""

from __future__ import annotations

from dataclasses import replace

from mlflow_stability.detectors.detector import Detector
from mlflow_stability.kinds.catalog import default_detectors, named
from mlflow_stability.kinds.inside.sdr_collapse import SdrCollapse, SdrLowDiversity
from mlflow_stability.kinds.loss.divergence_ahead import DivergenceAhead
from mlflow_stability.kinds.loss.divergence_classic import DivergenceClassic
from mlflow_stability.kinds.thresholds import as_asked, chosen
from mlflow_stability.session.recording.deferred_detection import Judging
from mlflow_stability.vocabulary.judging_rule import ROBUST
from mlflow_stability.vocabulary.settings import Settings


def chosen_detectors(settings: Settings) -> tuple[Detector, ...]:
    """Those that the settings name; SettingsError for a name that there is not."""
    asked = settings.detectors
    how = (settings.loss_spike_threshold, settings.gradient_explosion_threshold, settings.sensitivity, settings.rule)
    if asked is None:
        usual = (_tuned(each, settings.sdr_collapse_threshold) for each in default_detectors())
        detectors = as_asked(usual, *how)
    else:
        detectors = chosen(asked, *how)
    ahead = DivergenceAhead.kind
    if getattr(settings.rollback, "act_ahead", None) is not None and all(each.kind != ahead for each in detectors):
        detectors = (*detectors, *as_asked(named([ahead]), *how))
    if settings.divergence_threshold is None:
        return detectors
    own = DivergenceClassic(settings.divergence_threshold, settings.consecutive_divergence_steps)
    return (*(each for each in detectors if not isinstance(each, DivergenceClassic)), own)


def judging_of(settings: Settings) -> Judging:
    """When they look at a step. Other thresholds than the usual ones may be met by values that are usual."""
    if not settings.uses_autopilot:
        return Judging.DEFERRED
    thresholds = (settings.loss_spike_threshold, settings.gradient_explosion_threshold, settings.divergence_threshold)
    ahead = getattr(settings.rollback, "act_ahead", None)
    as_usual = settings.detectors is None and (settings.sensitivity, settings.rule) == ("normal", ROBUST)
    return Judging.GROUPED if as_usual and {*thresholds, ahead} == {None} else Judging.AT_ONCE


def _tuned(detector: Detector, unique: float) -> Detector:
    """A detector of sparse codes with the user's own idea of a collapse; any other as it is."""
    if isinstance(detector, SdrCollapse):
        return replace(detector, unique=unique)
    if isinstance(detector, SdrLowDiversity):
        return replace(detector, lowest=unique, highest=max(detector.highest, min(2 * unique, 1.0)))
    return detector
