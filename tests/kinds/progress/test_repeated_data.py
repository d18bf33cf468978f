from __future__ import annotations

import numpy as np
import pytest
from detectors.series import decaying, judged, noise

from mlflow_stability.vocabulary.loss_level import LossLevel, NoLevel
from mlflow_stability.vocabulary.result import Severity

usual = decaying(600, 1.3, 3.0) + noise(0, 600, 0.04)


def test_a_loss_that_goes_smooth_is_found_within_twenty_steps() -> None:
    stuck = usual.copy()
    stuck[400:] = usual[399] * np.exp(-0.02 * np.arange(1, 201))
    (event,) = judged("repeated_data", loss=stuck)
    assert 415 <= event.step <= 420
    assert event.severity is Severity.WARNING


def test_a_loss_that_rose_before_it_went_smooth_is_a_constant_output() -> None:
    collapsed = usual.copy()
    collapsed[400:410] = np.linspace(1.3, 2.0, 10)
    collapsed[410:] = 2.0 + 0.03 * np.exp(-0.05 * np.arange(190))
    (event,) = judged("repeated_data", loss=collapsed)
    assert event.kind == "constant_output"
    assert event.severity is Severity.WARNING
    assert "rose from a median of 1." in event.message
    assert event.metrics["before"] < 1.8 < event.metrics["loss"]


def test_the_opponent_of_a_gan_may_take_the_noise_away() -> None:
    collapsed = np.r_[usual[:400], 2.0 + 0.03 * np.exp(-0.05 * np.arange(200))]
    codes = {
        reason: np.full(600, LossLevel(reason).code) for reason in (NoLevel.ADVERSARIAL, NoLevel.SELF_DISTILLATION)
    }
    assert judged("repeated_data", loss=collapsed, loss_without_level=codes[NoLevel.ADVERSARIAL]) == []
    assert judged("repeated_data", loss=collapsed, loss_without_level=codes[NoLevel.SELF_DISTILLATION])


def test_a_batch_that_is_repeated_is_not_a_constant_output_before_it_is_learned() -> None:
    stuck = usual.copy()
    stuck[400:] = 1.05 * usual[300:400].mean() * np.exp(-1e-3 * np.arange(1, 201))
    assert [finding.kind for finding in judged("repeated_data", loss=stuck)] == ["repeated_data"]


def test_it_is_reported_again_after_the_noise_has_returned() -> None:
    stuck = usual.copy()
    stuck[300:340] = stuck[500:540] = 1.3 - 1e-4 * np.arange(40)
    assert [point.step // 100 for point in judged("repeated_data", loss=stuck)] == [3, 5]


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_noisy_loss_is_silent_also_when_batches_grow_fourfold(share: float) -> None:
    calmer = np.r_[usual[:400], 1.3 + noise(1, 2000, 0.04 * share)]
    assert judged("repeated_data", loss=calmer) == []


def test_an_oscillation_that_dies_away_is_no_batch_that_is_repeated() -> None:
    alive = noise(0, 600, 0.04)
    dying = np.exp(-np.clip(np.arange(600) - 300, 0, None) / 12)
    assert judged("repeated_data", loss=decaying(600, 1.3, 3.0) + alive * dying) == []


def test_a_training_on_the_whole_data_set_was_always_smooth() -> None:
    assert judged("repeated_data", loss=3.0 * np.exp(-np.arange(900) / 200)) == []


def test_correlated_noise_is_noise() -> None:
    value, hanging = 0.0, []
    for fresh in noise(2, 20_000, 0.02):
        value = 0.95 * value + fresh
        hanging.append(2.0 + value)
    assert judged("repeated_data", loss=hanging) == []


def test_a_loss_that_the_log_rounds_to_the_same_number_is_not_repeated_data() -> None:
    rounded = np.round(2 * np.exp(-np.arange(4000) / 200) * np.exp(noise(3, 4000, 0.2)), 4)
    assert judged("repeated_data", loss=rounded) == []


def test_a_loss_that_becomes_steady_after_large_jumps_is_not_repeated_data() -> None:
    wild = np.exp(noise(4, 300, 1.5))
    assert judged("repeated_data", loss=np.r_[wild, 2.0 + noise(5, 60, 0.001)]) == []


def test_a_training_on_the_whole_data_set_may_swing_before_it_is_smooth() -> None:
    swinging = 0.04 + 1e-6 * np.arange(900.0)[::-1]
    swinging[:600] *= np.exp(noise(6, 600, 2e-4))
    assert judged("repeated_data", loss=swinging) == []
