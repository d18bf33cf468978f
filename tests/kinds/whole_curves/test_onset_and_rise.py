"""A divergence begins where the loss jumped, and a loss that ends above its start is no healthy one."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import run_named

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.loss.divergence_curve import DivergenceRule


def correlated(seed: int, count: int, spread: float) -> np.ndarray:
    """Noise in which neighbouring steps err together."""
    noise = np.random.default_rng(seed).normal(0, 1, count)
    for at in range(1, count):
        noise[at] = 0.9 * noise[at - 1] + np.sqrt(1 - 0.9**2) * noise[at]
    return np.exp(spread * noise)


@pytest.mark.parametrize(("spread", "factor"), [(0.05, 1.3), (0.1, 1.3), (0.1, 1.6), (0.2, 2.5), (0.4, 6.0)])
@pytest.mark.parametrize("seed", [0, 3])
def test_a_divergence_begins_at_its_jump_and_not_in_the_noise_before(seed: int, spread: float, factor: float) -> None:
    losses = (0.5 + 2 * np.exp(-np.arange(2000) / 150)) * correlated(seed, 2000, spread)
    losses[1499:] *= factor
    findings = DivergenceRule().find(run_curves(run_named(loss=losses)))
    assert all(1496 <= process.start <= 1502 for process in findings)
    assert findings or factor < 2


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.15])
@pytest.mark.parametrize(
    "course",
    [
        lambda share: 3.65 + 1.9 * share,
        lambda share: 3.65 + 1.9 * np.log1p(50 * share) / np.log(51),
        lambda share: np.where(share < 0.03, 3.65, 5.55),
        lambda share: 3.65 + 3 * np.exp(-(((share - 0.3) / 0.15) ** 2)) + 1.9 * share,
    ],
    ids=["steadily", "ever slower", "early on", "with a hump"],
)
def test_a_loss_that_ends_clearly_above_its_start_is_not_healthy(course: object, noise: float) -> None:
    assert callable(course)
    for seed in range(3):
        losses = course(np.linspace(0, 1, 320)) * np.exp(np.random.default_rng(seed).normal(0, noise, 320))
        assert diagnosis_of(run_named(loss=losses)).outcome == "diverged"


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_verdict_names_levels_and_not_the_first_or_the_last_step(noise: float) -> None:
    losses = np.linspace(7.3, 5.5, 320) * np.exp(np.random.default_rng(0).normal(0, noise, 320))
    losses[0] /= 2
    losses[-1] /= 2
    verdict = diagnosis_of(run_named(loss=losses)).verdict
    assert " fell from about 7." in verdict
    assert " to 5.5" in verdict


def test_a_loss_that_rose_within_its_noise_is_not_called_healthy() -> None:
    losses = np.linspace(3.65, 5.55, 40) * np.exp(np.random.default_rng(1).normal(0, 0.4, 40))
    diagnosis = diagnosis_of(run_named(loss=losses))
    assert diagnosis.outcome == "cannot_tell"
    assert diagnosis.verdict.startswith("Cannot tell: loss (noisy) rose from about ")
    assert diagnosis.verdict.endswith(", but its noise is as large.")


def test_a_verdict_of_a_loss_that_hardly_moved_does_not_say_that_it_rose() -> None:
    losses = 0.69 * np.linspace(1, 1.04, 300) * np.exp(np.random.default_rng(0).normal(0, 0.1, 300))
    assert "loss (noisy) stayed between about 0.682 and 0.693 for" in diagnosis_of(run_named(loss=losses)).verdict


def test_the_best_level_that_is_named_is_below_the_end() -> None:
    losses = np.r_[0.0752, 0.18 * np.exp(np.random.default_rng(0).normal(0, 0.03, 299))]
    (finding,) = DivergenceRule().find(run_curves(run_named(loss=losses)))
    assert "times its best level of 0.0752 at step 0" in finding.message


def test_a_median_that_rises_while_the_mean_falls_is_no_divergence() -> None:
    # Single examples of four classes: most are easy and a few are hard at first, later all are near ln 4.
    rng = np.random.default_rng(0)
    early = np.where(rng.random(300) < 0.3, 2.6, 1.0) * np.exp(rng.normal(0, 0.15, 300))
    losses = np.r_[early, 1.38 * np.exp(rng.normal(0, 0.02, 600))]
    assert early.mean() > losses[300:].mean()
    assert DivergenceRule().find(run_curves(run_named(loss=losses))) == []
    losses[300:] *= 1.6
    assert DivergenceRule().find(run_curves(run_named(loss=losses)))
    losses[5] = 1e4
    assert DivergenceRule().find(run_curves(run_named(loss=losses)))


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_a_rise_within_a_few_noisy_epochs_counts_where_the_validation_loss_rose_as_well(scale: float) -> None:
    falling = scale * np.exp(-np.linspace(0, 1.5, 12))
    losses, validations = falling * np.exp(np.random.default_rng(1).normal(0, 0.1, 12)), 1.2 * falling
    losses[-3:], validations[-3:] = 3 * losses.min(), 2 * validations.min()
    assert DivergenceRule().find(run_curves(run_named(loss=losses))) == []
    (finding,) = DivergenceRule().find(run_curves(run_named(loss=losses, val_loss=validations)))
    assert (finding.kind, finding.start) == ("divergence", 9)
