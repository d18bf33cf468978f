"""A loss that is so noisy that neither a fall nor a plateau can be seen is not called healthy."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import metric_of, run_of

from mlflow_stability.diagnosis.diagnose import diagnosis_of

COUNT = 400
NOISE = np.exp(np.random.default_rng(0).normal(0.0, 0.4, COUNT))


@pytest.mark.parametrize("last", [1.0, 0.97])
def test_a_noisy_loss_that_stays_at_its_level_cannot_be_judged(last: float) -> None:
    diagnosis = diagnosis_of(run_of(metric_of("loss", np.geomspace(1.0, last, COUNT) * NOISE)))
    assert diagnosis.outcome == "cannot_tell"
    assert diagnosis.verdict.endswith("in 400 steps, and its noise would hide a small fall.")


def test_a_noisy_loss_that_falls_is_healthy() -> None:
    assert diagnosis_of(run_of(metric_of("loss", np.geomspace(1.0, 0.6, COUNT) * NOISE))).outcome == "healthy"


def test_a_validation_loss_that_falls_shows_what_a_noisy_loss_hides() -> None:
    validation = metric_of("val_loss", np.geomspace(1.0, 0.8, 20), steps=np.arange(0, COUNT, 20))
    assert diagnosis_of(run_of(metric_of("loss", NOISE), validation)).outcome == "healthy"


def test_a_loss_that_is_nearly_always_zero_from_the_start_cannot_be_judged() -> None:
    nearly_always = np.where(np.arange(COUNT) % 30 == 29, 0.1, 0.0)
    diagnosis = diagnosis_of(run_of(metric_of("loss", nearly_always)))
    assert diagnosis.verdict == "Cannot tell: loss stayed at 0 for 400 steps."
    assert (
        diagnosis_of(run_of(metric_of("loss", np.r_[np.geomspace(1, 1e-3, 200), np.zeros(200)]))).outcome == "healthy"
    )
