from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from diagnosis.histories import falling, run_named
from findings import changed, over_steps

from mlflow_stability.diagnosis.advice import remedies_of
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.catalog import default_detectors
from mlflow_stability.kinds.loss.loss_spike import LossSpike
from mlflow_stability.vocabulary.result import CLIP_GRADIENTS, Action, Remedy, Severity


def noise(seed: int, count: int, spread: float = 0.03) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0, spread, count))


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 7, 12, 40])
def test_more_spikes_never_make_a_run_healthy(count: int) -> None:
    losses = falling(4000, noise=0.03)
    losses[np.linspace(1000, 3900, count).astype(int)] *= 3
    diagnosis = diagnosis_of(run_named(loss=losses))
    assert diagnosis.outcome == "unstable"
    assert sum(finding.severity is Severity.WARNING for finding in diagnosis.findings) == count


def test_small_waves_that_repeat_every_epoch_are_one_remark() -> None:
    steps = np.arange(4000)
    losses = (1 + 2 * np.exp(-steps / 800)) * (1 + 0.25 * np.abs(steps % 400 / 200 - 1)) * noise(1, 4000)
    diagnosis = diagnosis_of(run_named(loss=losses))
    assert diagnosis.outcome == "healthy"
    assert len([finding for finding in diagnosis.findings if finding.kind == "divergence"]) <= 1


@pytest.mark.parametrize("seed", range(3))
def test_a_small_bump_of_a_curriculum_is_only_mentioned(seed: int) -> None:
    steps = np.arange(3000)
    bumps = sum(np.where(steps >= at, 0.15 * np.exp(-np.maximum(0, steps - at) / 200), 0) for at in (1000, 2000))
    losses = (2 + 3 * np.exp(-steps / 300) + bumps) * noise(seed, 3000, 0.02)
    assert diagnosis_of(run_named(loss=losses)).outcome == "healthy"


def test_a_new_stage_that_falls_again_is_a_warning_and_not_lost() -> None:
    steps = np.arange(4000)
    second = 0.8 + 1.7 * np.exp(-np.maximum(0, steps - 2000) / 200)
    losses = np.where(steps < 2000, 0.5 + 2 * np.exp(-steps / 200), second) * noise(1, 4000, 0.04)
    diagnosis = diagnosis_of(run_named(loss=losses))
    assert (diagnosis.outcome, diagnosis.severity) == ("unstable", Severity.WARNING)
    assert "falling since its maximum" in diagnosis.findings[0].message


def test_a_loss_that_rises_and_stays_high_is_still_lost() -> None:
    losses = falling(4000)
    losses[2000:] *= 3
    assert diagnosis_of(run_named(loss=losses)).outcome == "diverged"


def test_a_replayed_divergence_starts_where_the_loss_left_its_level() -> None:
    rng, steps = np.random.default_rng(3), np.arange(3000)
    losses = -0.9 + 0.8 * np.exp(-steps / 200) + rng.normal(0, 0.02, 3000) + np.where(steps >= 2000, 0.6, 0)
    diagnosis = diagnosis_of(run_named(loss=losses))
    assert [(finding.kind, finding.start) for finding in diagnosis.findings] == [("divergence", 2000)]


def test_the_verdict_describes_the_end_of_a_divergence_by_its_last_values() -> None:
    losses = falling(3000, noise=0.001)
    losses[2000:] *= np.exp(np.arange(1000) / 300)
    assert f"ended near {np.median(losses[-5:]):.4g}" in diagnosis_of(run_named(loss=losses)).verdict


def test_an_error_of_estimated_returns_may_grow_but_not_a_thousandfold() -> None:
    losses = np.geomspace(0.02, 0.8, 2000) * noise(1, 2000, 0.3)
    blown = np.geomspace(0.02, 800, 2000) * noise(1, 2000, 0.3)
    rising = np.linspace(20, 400, 2000)
    assert diagnosis_of(run_named(critic_loss=losses, episode_reward=rising)).outcome == "cannot_tell"
    assert diagnosis_of(run_named(critic_loss=blown, episode_reward=rising)).outcome == "diverged"


@pytest.mark.parametrize(("threshold", "outcome"), [(6.0, "unstable"), (8.0, "unstable"), (1000.0, "healthy")])
def test_the_requested_threshold_decides(threshold: float, outcome: str) -> None:
    losses = falling(3000, noise=0.03)
    losses[2000:2003] *= 2
    asked = [
        replace(detector, threshold=threshold) if isinstance(detector, LossSpike) else detector
        for detector in default_detectors()
    ]
    assert diagnosis_of(run_named(loss=losses), detectors=asked).outcome == outcome


def test_the_verdict_on_a_loss_that_changes_sign_gives_values_without_a_percentage() -> None:
    losses = 4 - 6.5 * (1 - np.exp(-np.arange(3000) / 500)) + np.random.default_rng(1).normal(0, 0.3, 3000)
    verdict = diagnosis_of(run_named(nll=losses)).verdict
    assert verdict.startswith("Healthy: nll fell from ")
    assert "%" not in verdict


def test_a_remedy_that_another_one_contains_is_left_out() -> None:
    both = Remedy(Action.INSPECT_LOSS_AND_BATCH, step=1)
    spike = over_steps("loss_spike", Severity.WARNING, 1, 1, 1, "", remedies=(both,))
    other = changed(spike, start=2, remedies=(Remedy(Action.INSPECT_BATCH, step=2), CLIP_GRADIENTS))
    assert remedies_of([spike, other], None, "unstable") == (both, CLIP_GRADIENTS)
