"""The verdict of runs in which nothing was measured, nothing was learnt, or no step was taken."""

from __future__ import annotations

import numpy as np
import pytest
from detectors.series import judged, noise
from diagnosis.histories import falling, run_named

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import RunHistory


def serious(history: RunHistory) -> list[tuple[str, int]]:
    return [
        (finding.kind, finding.start) for finding in diagnosis_of(history).findings if finding.severity > Severity.INFO
    ]


def test_a_gradient_norm_of_zero_while_the_loss_falls_was_not_measured() -> None:
    losses = np.linspace(2.3, 1.38, 1000) + noise(2, 1000, 0.01)
    assert judged("gradient_vanishing", loss=losses, grad_norm=np.zeros(1000)) == []
    assert serious(run_named(loss=losses, grad_norm=np.zeros(1000))) == []
    assert "gradient_vanishing" not in dict(serious(run_named(loss=losses[:60], grad_norm=np.zeros(60))))


def test_a_gradient_norm_of_zero_while_the_loss_is_flat_is_a_vanishing_gradient() -> None:
    losses = 2.3 + noise(2, 400, 0.001)
    (event,) = judged("gradient_vanishing", loss=losses, grad_norm=np.zeros(400))
    assert event.step >= 199
    assert judged("gradient_vanishing", loss=losses, grad_norm=np.where(np.arange(400) < 5, 1.0, 0.0))[0].step < 40


def at_chance(count: int) -> tuple[np.ndarray, np.ndarray]:
    """A training loss that comes down to the cost of guessing among ten classes, and a validation loss that rises."""
    steps = np.arange(count)
    return 2.303 + 0.1 * np.exp(-steps / (count / 6)), np.interp(steps, [0, count / 5, count], [2.5, 2.35, 3.2])


def test_a_validation_loss_that_rises_while_the_training_guesses_is_no_overfitting() -> None:
    training, validation = at_chance(60)
    assert "overfitting" not in dict(serious(run_named(loss=training, val_loss=validation)))
    assert judged("overfitting", loss=training, val_loss=validation) == []


def test_it_is_overfitting_if_the_training_loss_keeps_falling() -> None:
    training, validation = at_chance(60)
    training = training * np.linspace(1.0, 0.4, 60)
    assert "overfitting" in dict(serious(run_named(loss=training, val_loss=validation)))
    assert [finding.kind for finding in judged("overfitting", loss=training, val_loss=validation)] == ["overfitting"]


@pytest.mark.parametrize("kept", [27, 400])
def test_a_run_that_ends_in_skipped_steps_is_not_healthy(kept: int) -> None:
    count = kept + 13
    skipped = np.maximum(np.arange(count) - (kept - 1), 0).astype(float)
    scale = 65536.0 * 0.5**skipped
    run = run_named(loss=falling(count), skipped_steps=skipped, loss_scale=scale)
    diagnosis = diagnosis_of(run)
    assert diagnosis.outcome == "unstable"
    assert ("step_skipped", kept) in serious(run)


def test_a_scaler_that_found_its_scale_after_a_few_skipped_steps_is_healthy() -> None:
    skipped = np.minimum(np.arange(40), 13).astype(float)
    scale = 65536.0 * 0.5**skipped
    assert serious(run_named(loss=falling(40), skipped_steps=skipped, loss_scale=scale)) == []
