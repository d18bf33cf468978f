from __future__ import annotations

from mlflow_stability.analysis.thresholds import detectors_with
from mlflow_stability.detectors.catalog import default_detectors
from mlflow_stability.detectors.gradient_explosion import GradientExplosion
from mlflow_stability.detectors.loss_spike import LossSpike


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
