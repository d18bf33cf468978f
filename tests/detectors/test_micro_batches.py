"""The loss of a step that accumulated fewer micro-batches is judged like the others."""

from __future__ import annotations

import numpy as np
import pytest
from detectors.series import judged, noise
from diagnosis.histories import run_named

from mlflow_stability.detectors.micro_batches import LASTING_STEPS, UsualCount, with_usual_count
from mlflow_stability.diagnosis.diagnose import diagnosis_of

STEPS, EPOCH = 600, 100
COUNTS = np.where(np.arange(STEPS) % EPOCH == 0, 1.0, 2.0)
MEAN = np.linspace(7.3, 5.55, STEPS) * np.exp(noise(0, STEPS, 0.01))


@pytest.mark.parametrize("divides", [True, False], ids=["divided by two", "not divided"])
def test_a_curve_has_no_halved_losses(divides: bool) -> None:
    recorded = MEAN * COUNTS / (2 if divides else 1)
    whole = MEAN if divides else 2 * MEAN
    assert with_usual_count(recorded, COUNTS) == pytest.approx(whole)
    diagnosis = diagnosis_of(run_named(loss=recorded, micro_batches=COUNTS))
    assert diagnosis.curves[0].best == pytest.approx(whole.min())
    assert diagnosis.verdict.startswith("Healthy: loss fell from 7" if divides else "Healthy: loss fell from 14")


def test_a_number_that_lasts_is_the_usual_one() -> None:
    counts = np.r_[np.full(100, 1.0), np.full(100, 4.0)]
    assert with_usual_count(np.full(200, 3.0), counts)[[50, 90, 110, 150]] == pytest.approx(3.0)
    usual = UsualCount()
    factors = [usual.factor(count) for count in counts]
    assert factors[:100] == [1.0] * 100
    assert factors[108:] == [1.0] * 92


def test_the_first_step_of_fewer_micro_batches_does_not_count_as_usual() -> None:
    usual = UsualCount()
    assert [usual.factor(count) for count in (1.0, 2.0, 2.0, 1.0, 2.0, 0.0)] == [1.0, 1.0, 1.0, 2.0, 1.0, 1.0]


@pytest.mark.parametrize(("steps", "factor"), [(LASTING_STEPS, 1.0), (LASTING_STEPS + 1, 0.5)])
def test_a_larger_number_is_the_usual_one_at_once_during_the_first_steps_only(steps: int, factor: float) -> None:
    usual = UsualCount()
    assert [usual.factor(count) for count in [1.0] * (steps - 1) + [2.0]] == [1.0] * (steps - 1) + [factor]


def test_detectors_see_no_halved_losses() -> None:
    low = 2 + noise(1, STEPS, 0.01)
    halved = low * COUNTS / 2
    double = np.where(np.arange(STEPS) % EPOCH == 50, 2.0, 1.0)
    assert judged("loss_spike divergence", loss=halved, micro_batches=COUNTS) == []
    assert judged("loss_spike divergence", loss=low * double, micro_batches=double) == []
    assert judged("loss_spike divergence", loss=low * double) != []
