from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import run_named

from mlflow_stability.analysis.thresholds import asked_detectors, detectors_with
from mlflow_stability.detectors.catalog import default_detectors
from mlflow_stability.detectors.gradients.gradient_explosion import GradientExplosion
from mlflow_stability.detectors.loss.loss_spike import LossSpike
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.errors import SettingsError


def test_without_a_wish_nothing_is_changed() -> None:
    assert detectors_with() is None


def test_a_wish_changes_just_what_it_names() -> None:
    wished = detectors_with(gradient_explosion=20)
    assert wished is not None
    different = [new for new, usual in zip(wished, default_detectors(), strict=True) if new != usual]
    assert different == [GradientExplosion(threshold=20)]


def test_the_limit_that_the_gradient_confirms_moves_with_the_other() -> None:
    wished = detectors_with(loss_spike=16) or ()
    (spike,) = (each for each in wished if isinstance(each, LossSpike))
    assert (spike.threshold, spike.threshold_with_gradient, spike.calm_below) == (16, 12, 4)


def test_nothing_above_a_limit_counts_as_calm() -> None:
    wished = detectors_with(loss_spike=3, gradient_explosion=2) or ()
    (spike,) = (each for each in wished if isinstance(each, LossSpike))
    (explosion,) = (each for each in wished if isinstance(each, GradientExplosion))
    assert spike.calm_below <= spike.threshold_with_gradient < spike.threshold
    assert explosion.calm_below <= explosion.threshold


@pytest.mark.parametrize("count", [30, 120, 2000])
def test_a_threshold_of_three_finds_a_loss_that_is_four_deviations_up(count: int) -> None:
    losses = 2.0 * np.exp(0.01 * np.clip(np.random.default_rng(2).standard_normal(count), -2, 2))
    losses[count // 2] = 2.0 * np.exp(0.045)
    history = run_named(loss=losses)

    def found(threshold: float | None) -> list[int]:
        episodes = diagnosis_of(history, detectors=detectors_with(loss_spike=threshold)).episodes
        return [each.peak for each in episodes if each.kind == "loss_spike"]

    assert found(None) == found(8.0) == []
    assert count // 2 in found(3.0)


def test_a_sensitivity_moves_the_usual_detectors_and_no_others() -> None:
    assert asked_detectors(None, "normal") is None
    assert asked_detectors(None, "high") == detectors_with(sensitivity="high")
    assert asked_detectors((LossSpike(),), "normal") == (LossSpike(),)
    with pytest.raises(SettingsError, match="not both"):
        asked_detectors((LossSpike(),), "low")
    with pytest.raises(SettingsError, match="sensitivity must be 'low', 'normal' or 'high'; got 'hgih'"):
        asked_detectors(None, "hgih")


def test_a_threshold_that_was_named_comes_before_the_sensitivity() -> None:
    (spike,) = (each for each in detectors_with(loss_spike=10, sensitivity="high") or () if isinstance(each, LossSpike))
    assert spike.threshold == 10
