from __future__ import annotations

import math

import numpy as np
import pytest
from detectors.series import Floats, decaying, judged, noise

from mlflow_stability.kinds.panel import replay
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding, Severity

LOSS, VAL_LOSS = (Signal("loss"),), (Signal("val_loss"),)


def test_a_loss_at_chance_is_a_plateau_and_is_named() -> None:
    (event,) = judged("plateau", loss=math.log(10) + noise(1, 3000, 0.02))
    assert (event.severity, event.metrics["classes"]) == (Severity.WARNING, 10)
    assert 999 <= event.step < 2000
    assert "chance level for 10 classes" in event.message


def test_the_nearest_number_of_classes_that_people_use_is_named() -> None:
    named = {}
    for classes in (19, 32, 65, 100, 365):
        (event,) = judged("plateau", loss=1.0005 * math.log(classes) + noise(1, 1200, 0.001))
        named[classes] = event.metrics.get("classes")
    assert named == {19: 19, 32: 32, 65: 65, 100: 100, 365: 365}


NO_PLATEAU = {
    "converged": decaying(4000, over=100) + noise(2, 4000, 0.03),
    "fine-tuned": 1.08 + 0.22 * np.exp(-np.arange(4000) / 100) + noise(3, 4000, 0.03),
    "very slow": 3 * np.exp(-np.arange(4000) / 150_000) + noise(7, 4000, 0.02),
    "slow": 3 - np.arange(4000) / 4000 + noise(4, 4000, 0.03),
    "around zero": noise(5, 4000, 0.3),
    "short": np.full(900, 2.3),
    "diverged": np.where(np.arange(4000) < 600, 2.0, 6.0),
}


@pytest.mark.parametrize("name", NO_PLATEAU)
def test_what_gained_or_is_too_short_is_no_plateau(name: str) -> None:
    assert judged("plateau", loss=NO_PLATEAU[name]) == []


def test_a_small_gain_and_then_nothing_for_long_is_a_plateau() -> None:
    loss = np.where(np.arange(14_000) < 200, 4.0, 3.75) + noise(6, 14_000, 0.02)
    (event,) = judged("plateau", loss=loss)
    assert 9_999 <= event.step < 11_000


def run(train: Floats, validation: Floats, every: int = 50) -> list[Finding]:
    records = []
    for step, loss in enumerate(train):
        records.append(StepReading(step, LOSS, (float(loss),)))
        if step % every == every - 1:
            records.append(StepReading(step, VAL_LOSS, (float(validation[step // every]),)))
    return [event for event in replay(records) if event.kind == "overfitting"]


falls = decaying(1000, 0.3, 2.0, 300)
u_shape = 1.2 + 0.6 * np.abs(np.linspace(-1, 1.2, 20)) ** 1.5


def test_validation_that_rises_while_training_falls_is_overfitting() -> None:
    (event,) = run(falls + noise(1, 1000, 0.03), u_shape)
    assert event.severity is Severity.WARNING
    assert event.metrics["best_step"] == pytest.approx(449, abs=51)
    assert 600 < event.step < 1000


def test_both_rising_is_no_overfitting() -> None:
    assert run(falls[::-1], u_shape) == []


def test_validation_that_stays_level_is_no_overfitting() -> None:
    assert run(falls, np.maximum(u_shape, 0)[:1].repeat(20)) == []


@pytest.mark.parametrize("seed", range(30))
def test_noisy_validation_is_no_overfitting(seed: int) -> None:
    assert run(falls, 1.0 + noise(seed, 20, 0.05)) == []


def test_overfitting_is_seen_through_noise() -> None:
    assert len(run(falls + noise(2, 1000, 0.1), u_shape + noise(3, 20, 0.02))) == 1


def test_without_a_training_loss_there_is_no_overfitting() -> None:
    records = [StepReading(step, VAL_LOSS, (float(value),)) for step, value in enumerate(u_shape)]
    assert [event for event in replay(records) if event.kind == "overfitting"] == []


def test_the_pair_of_another_place_is_another_pair() -> None:
    layout = (Signal("loss", "seg"), Signal("val_loss"))
    records = [StepReading(n, layout, (float(falls[n]), float(u_shape[n // 50]))) for n in range(1000)]
    assert [event for event in replay(records) if event.kind == "overfitting"] == []
