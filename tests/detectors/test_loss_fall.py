"""What has been learnt is no trouble any more, for no detector."""

from __future__ import annotations

import numpy as np
import pytest
from detectors.series import at, decaying, judged, noise

from mlflow_stability.detectors.loss_fall import (
    EARLY_VALUES,
    FIRST_VALUES,
    RECENT_VALUES,
    FirstValues,
    LossFall,
    start_level,
)


def learnt(steps: int, lowest: float = 1e-6) -> np.ndarray:
    """A loss that falls to next to nothing, with noise as wide as a tenth of it."""
    return decaying(steps, lowest, 2.3, over=20.0) * np.exp(noise(3, steps, 0.1))


def test_a_jump_below_a_hundredth_of_the_first_loss_is_not_a_spike() -> None:
    losses = learnt(600)
    assert judged("loss_spike", loss=at(losses, 500, 1000.0)) == []
    (event,) = judged("loss_spike", loss=at(losses, 500, 1e5))
    assert event.step == 500


def test_a_loss_of_exactly_zero_has_been_learnt() -> None:
    losses = np.where(np.arange(600) < 15, 2.3 * 0.5 ** np.arange(600), 0.0)
    norms = np.where(np.arange(600) < 15, 1.0, 1e-9)
    assert judged("gradient_vanishing", loss=losses, grad_norm=norms) == []
    assert judged("loss_spike divergence", loss=losses + np.where(np.arange(600) == 400, 5.6e-7, 0.0)) == []


def test_the_first_losses_of_a_log_with_few_points_count_even_where_they_are_the_only_high_ones() -> None:
    losses = np.concatenate([[2.3, 0.4], np.geomspace(1e-3, 1e-8, 98)])
    assert judged("gradient_vanishing", loss=losses, grad_norm=1e-3 * losses) == []


def test_a_loss_that_rises_slowly_from_almost_zero_is_not_a_divergence() -> None:
    rising = np.interp(np.arange(1500), [0, 700, 1500], [1, 1, 100])
    assert judged("divergence", loss=learnt(1500) * rising) == []
    (event, *_) = judged("divergence", loss=learnt(1500, 0.05) * rising)
    assert event.step > 700


def test_a_jump_of_an_almost_zero_gradient_norm_is_not_an_explosion() -> None:
    norms = learnt(600)
    assert judged("gradient_explosion", grad_norm=at(norms, 500, 1000.0)) == []
    assert judged("gradient_explosion", grad_norm=at(norms, 500, 1e5)) != []


def test_layers_of_a_model_with_almost_zero_loss_are_neither_dead_nor_starved() -> None:
    rounds = range(0, 3000, 100)
    losses = np.concatenate([[2.3] * 20, np.zeros(2980)])
    measured = np.isin(np.arange(3000), list(rounds))
    late = np.arange(3000) > 200

    def of(value: float) -> list[float | None]:
        return [(value if past else 1.0) if here else None for here, past in zip(measured, late, strict=True)]

    layers = {"param_norm@a": of(1.0), "grad_norm@a": of(0.0), "grad_norm@b": of(1e-9)}
    layers |= {"grad_norm@c": of(1e-9), "grad_norm@d": of(1e-4)}
    seen = {"learning_rate": [0.1] * 3000, **layers, "update_ratio@a": of(1e-12)}
    names = "dead_layer update_ratio_low gradient_imbalance gradient_vanishing:layers"
    assert judged(names, loss=losses, **seen) == []
    kinds = {finding.kind for finding in judged(names, loss=[2.3] * 3000, **seen)}
    assert kinds == {"dead_layer", "update_ratio_low", "gradient_imbalance", "gradient_vanishing"}


def test_an_extreme_first_loss_is_not_the_start_level() -> None:
    assert start_level([156.0, 11.3, 1.5, *[0.6] * 17]) < 20
    assert start_level([2.3, 0.01, *[0.0] * 18]) >= 0.2
    assert start_level([]) == 0.0


def test_a_loss_below_zero_does_not_count_as_learnt() -> None:
    fall = LossFall()
    for value in (-1.0, -2.0, -3.0):
        fall.take(value)
    assert not fall.learnt()
    assert FirstValues([5.0]).matters(0.001, level=-1.0)


@pytest.mark.parametrize(("last", "share"), [(1.0, 0.5), (6.0, 3.0), (0.0, 0.0), (-1.0, None)])
def test_the_share_of_a_loss_that_is_left_is_known_after_its_first_values(last: float, share: float | None) -> None:
    fall = LossFall()
    for _ in range(FIRST_VALUES):
        assert fall.share() is None
        fall.take(2.0)
    assert fall.share() == 1.0
    for _ in range(RECENT_VALUES):
        fall.take(last)
    assert fall.share() == share
    assert fall.has_fallen_to(0.5) is (share is not None and share <= 0.5)


def test_in_the_first_steps_a_loss_is_compared_with_its_very_first_value() -> None:
    fall = LossFall()
    for loss in (8.0, *[2.0] * EARLY_VALUES):
        assert not fall.has_fallen_to(0.25)
        fall.take(loss)
    assert fall.has_fallen_to(0.25)
    assert not fall.has_fallen_to(0.24)
