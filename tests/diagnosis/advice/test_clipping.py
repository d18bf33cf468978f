"""At which norm gradients are to be clipped: at the run's own usual norm, or at no norm that is named."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of
from findings import at_step

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.gradients.gradient_explosion import GradientExplosion, GradientSpikeFacts
from mlflow_stability.kinds.loss.divergence import Divergence
from mlflow_stability.vocabulary.result import Diagnosis, Remedy, Severity, Topic, read_remedies
from mlflow_stability.vocabulary.result.remedy import clipping_norm

AT, COUNT = 250, 400
NOISE = np.random.default_rng(7).normal(0, 0.1, COUNT)


def diverged(
    norms: np.ndarray, remedies: tuple[Remedy, ...] = Divergence.remedies, **params: str
) -> tuple[Diagnosis, list[Remedy]]:
    """Return the diagnosis of a loss that rose for good, and what it and its findings say about clipping."""
    losses = falling(COUNT)
    losses[AT:] *= 1 + np.minimum(4, (np.arange(AT, COUNT) - AT) / 10)
    rose = at_step(AT, "divergence", Severity.CRITICAL, "loss rose.", remedies=remedies)
    history = run_of(metric_of("loss", losses), metric_of("grad_norm", norms), events=[rose], params=params)
    diagnosis = diagnosis_of(history)
    every = [*diagnosis.remedies, *(remedy for finding in diagnosis.findings for remedy in finding.remedies)]
    return diagnosis, [item for item in every if item.topic is Topic.CLIP_GRADIENTS]


def norms_of(usual: float, exploded: float) -> np.ndarray:
    norms = usual * np.exp(NOISE)
    norms[AT - 2 :] = exploded
    return norms


@pytest.mark.parametrize("usual", [1e-4, 0.05, 3.0, 70.0])
def test_gradients_are_to_be_clipped_at_the_usual_norm_of_the_run(usual: float) -> None:
    _, advised = diverged(norms_of(usual, 12 * usual))
    assert advised
    for remedy in advised:
        assert isinstance(remedy.target, float)
        assert remedy.target == pytest.approx(usual, rel=0.1)


def test_gradients_that_explode_only_at_the_worst_point_of_a_rise_are_to_be_clipped_too() -> None:
    norms = norms_of(0.05, 0.05)
    norms[AT + 40 :] = 0.6
    _, advised = diverged(norms)
    assert advised
    assert all(remedy.target == pytest.approx(0.05, rel=0.1) for remedy in advised)


@pytest.mark.parametrize("again", ["Clip gradients at 1.0.", "Clip gradients."])
def test_a_number_that_an_older_recording_advised_is_replaced(again: str) -> None:
    _, advised = diverged(norms_of(0.05, 0.6), read_remedies([again]))
    assert advised
    assert all(remedy.target == pytest.approx(0.05, rel=0.1) for remedy in advised)


def test_all_findings_of_one_explosion_advise_the_same_norm() -> None:
    norms, losses = norms_of(0.05, 0.6), falling(COUNT)
    norms[: AT - 20] *= 2  # the usual norm has fallen since
    losses[AT:] *= 1 + np.minimum(4, (np.arange(AT, COUNT) - AT) / 10)
    rose = at_step(AT, "divergence", Severity.CRITICAL, "loss rose.", remedies=Divergence.remedies)
    facts = GradientSpikeFacts(0.6, 0.05, 12.0, 4.0)
    exploded = at_step(AT, "gradient_explosion", Severity.WARNING, remedies=GradientExplosion.remedies, facts=facts)
    curves = metric_of("loss", losses), metric_of("grad_norm", norms)
    diagnosis = diagnosis_of(run_of(*curves, events=[rose, exploded]))
    advised = [
        [remedy.target for remedy in finding.remedies if remedy.topic is Topic.CLIP_GRADIENTS]
        for finding in diagnosis.findings
        if finding.kind in ("divergence", "gradient_explosion")
    ]
    assert advised == [[0.05], [0.05]]


def test_no_clipping_norm_is_advised_where_no_gradient_norm_is_above_the_usual_one() -> None:
    _, advised = diverged(norms_of(0.05, 0.05))
    assert {str(remedy) for remedy in advised} == {"Clip gradients."}


def test_a_run_that_clips_far_above_its_usual_norm_is_to_clip_at_it() -> None:
    _, advised = diverged(norms_of(0.05, 0.6), max_norm="1.0")
    assert {str(remedy) for remedy in advised} == {"Clip gradients at 0.049 instead of 1."}


@pytest.mark.parametrize("clips_at", ["1.0", "3.2"])
def test_clipping_is_not_advised_where_the_run_clips_near_its_usual_norm_or_below(clips_at: str) -> None:
    diagnosis, advised = diverged(norms_of(3.0, 40.0), max_norm=clips_at)
    assert diagnosis.remedies
    assert not advised


def test_the_norm_of_a_training_with_nothing_left_to_learn_is_no_clipping_norm() -> None:
    assert clipping_norm(0.02, 10.0) == 0.02
    assert clipping_norm(1.8e-9, 10.0) is None
