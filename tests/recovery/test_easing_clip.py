from __future__ import annotations

import pytest
import torch

from mlflow_stability.recovery.easing_clip import EasingClip


def clip_with(norms: list[float]) -> EasingClip:
    clip = EasingClip(times=2.0)
    for each in norms:
        clip.take(each)
    return clip


def test_gradients_longer_than_a_multiple_of_their_usual_norm_are_shortened_to_it() -> None:
    clip = clip_with([0.9, 1.0, 1.1, 50.0, 1.0] * 10)
    gradient = torch.full((4,), 10.0)
    clip.at_gate([gradient], torch.tensor(20.0))
    assert float(gradient.norm()) == pytest.approx(2.0)


def test_gradients_that_are_no_longer_stay_bit_identical() -> None:
    clip = clip_with([1.0] * 30)
    gradient = torch.rand(4) / 2
    before = gradient.clone()
    clip.at_gate([gradient], gradient.norm())
    assert torch.equal(gradient, before)


@pytest.mark.parametrize("norms", [[], [1.0] * 19, [float("nan")] * 50])
def test_where_nothing_is_known_of_what_is_usual_nothing_is_clipped(norms: list[float]) -> None:
    gradient = torch.full((4,), 1e9)
    clip_with(norms).at_gate([gradient], torch.tensor(2e9))
    assert gradient.tolist() == [1e9] * 4
