from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import run_named
from zoo.curves.healthy import TRAPS, healthy_run

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.progress.overfitting_curves import GeneralisationGapRule
from mlflow_stability.vocabulary.run import RunHistory

STEPS = np.arange(400)


def with_validation(train_end: float, val_end: float) -> RunHistory:
    random = np.random.default_rng(0)
    loss = (train_end + 2.3 * np.exp(-STEPS / 80)) * np.exp(0.02 * random.standard_normal(len(STEPS)))
    validation = (val_end + (2.3 - val_end) * np.exp(-STEPS / 40)) * np.exp(0.01 * random.standard_normal(len(STEPS)))
    return run_named(loss=loss, val_loss=validation)


def test_a_validation_loss_that_stays_while_the_training_loss_falls_on_is_not_healthy() -> None:
    diagnosis = diagnosis_of(with_validation(0.05, 1.0))
    assert diagnosis.outcome == "overfitted"
    assert "times loss of 0.07" in diagnosis.verdict


def test_a_small_gap_is_healthy() -> None:
    assert diagnosis_of(with_validation(0.6, 1.0)).outcome == "healthy"


def test_an_error_rate_is_not_compared_with_a_loss() -> None:
    loss, validation = (metric.series.values for metric in with_validation(0.05, 1.0).metrics)
    assert GeneralisationGapRule().find(run_curves(run_named(loss=loss, val_err=20 * validation))) == []


@pytest.mark.parametrize("trap", ["validation levels off", "grokking", "double descent", "small validation"])
def test_healthy_courses_of_a_validation_loss_have_no_such_gap(trap: str) -> None:
    assert trap in TRAPS
    for seed in range(10):
        assert GeneralisationGapRule().find(run_curves(healthy_run(seed, trap).history())) == [], seed
