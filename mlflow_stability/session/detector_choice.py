"""Decides which detectors look at a training, and when, from what the user asked for."""

from __future__ import annotations

from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.sensitivity import at_sensitivity
from mlflow_stability.kinds.catalog import choose_detectors, detectors_named
from mlflow_stability.kinds.loss.divergence import DivergenceClassic
from mlflow_stability.kinds.loss.divergence_early import DivergenceAhead
from mlflow_stability.session.recording.deferred_detection import Judging
from mlflow_stability.vocabulary.judging import DEFAULT
from mlflow_stability.vocabulary.settings import Settings


def chosen_detectors(settings: Settings) -> tuple[Detector, ...]:
    """Those that the settings name; SettingsError for a name that there is not."""
    detectors = choose_detectors((DEFAULT,) if settings.detectors is None else settings.detectors, settings.sensitivity)
    policy, ahead = settings.policy, DivergenceAhead.kind
    if policy.act_ahead is not None and all(detector.kind != ahead for detector in detectors):
        detectors = (*detectors, *at_sensitivity(detectors_named([ahead]), settings.sensitivity))
    if policy.divergence_threshold is None:
        return detectors
    own = DivergenceClassic(policy.divergence_threshold, policy.consecutive_divergence_steps)
    return (*(detector for detector in detectors if not isinstance(detector, DivergenceClassic)), own)


def judging_of(settings: Settings) -> Judging:
    """When they look at a step. Other thresholds than the usual ones may be met by values that are usual."""
    if not settings.uses_autopilot:
        return Judging.DEFERRED
    policy = settings.policy
    as_usual = settings.detectors in (None, (DEFAULT,)) and settings.sensitivity == "normal"
    as_usual = as_usual and policy.divergence_threshold is None and policy.act_ahead is None
    return Judging.GROUPED if as_usual else Judging.AT_ONCE
