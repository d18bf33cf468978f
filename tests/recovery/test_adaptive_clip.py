from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from mlflow_stability.probes.gradient_norm import gradients_of, total_norm
from mlflow_stability.recovery.easing import CLIP_WARM_UP, AdaptiveClip, clip_in_place

NAN, INF = float("nan"), float("inf")


def clipped(norms: list[float]) -> list[float]:
    """The norms after clipping."""
    weight = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    clip = AdaptiveClip()
    left = []
    for norm in norms:
        weight.grad = torch.full_like(weight, norm / 2)
        measured = total_norm(gradients_of(optimizer))
        assert measured is not None
        factor = clip.before_step(optimizer, gradients_of(optimizer), measured)
        assert (factor is None) is (len(left) < CLIP_WARM_UP)
        left.append(float(torch.linalg.vector_norm(weight.grad)))
    return left


def usual(count: int) -> list[float]:
    return list(np.random.default_rng(0).normal(1.0, 0.1, count).clip(0.8, 1.2))


def test_an_outlier_norm_is_clipped_and_the_others_are_not() -> None:
    norms = usual(100)
    norms[60], norms[80] = 50.0, 3.0
    left = clipped(norms)
    assert left[60] < 1.3
    assert 1.0 < left[80] < 1.3
    assert left[60] < left[80]  # the further out, the shorter
    changed = [number for number, (a, b) in enumerate(zip(norms, left, strict=True)) if abs(a - b) > 1e-9]
    assert changed == [60, 80]


def test_what_is_let_through_and_not_what_came_counts_as_usual() -> None:
    norms = usual(40) + [100.0] * 20
    assert max(clipped(norms)[40:]) < 5.0


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("when", [3, 50])
def test_a_norm_that_is_not_finite_spoils_nothing_that_comes_after(bad: float, when: int) -> None:
    norms = usual(100)
    norms[80] = 50.0
    without = clipped(norms)
    norms[when] = bad
    left = clipped(norms)
    assert np.isfinite([item for number, item in enumerate(left) if number != when]).all()
    assert left[80] == pytest.approx(without[80], rel=0.2)


@pytest.mark.parametrize("period", [5, 30])
def test_norms_of_zero_say_nothing_of_the_others(period: int) -> None:
    """As with a reward that is seldom there."""
    norms = [1.0 + 0.1 * np.sin(step) if step % period == 0 else 0.0 for step in range(40 * period)]
    assert clipped(norms) == pytest.approx(norms)
    norms[35 * period] = 50.0
    assert 0.9 < clipped(norms)[35 * period] < 1.5


def test_it_warms_up_before_it_clips() -> None:
    norms = [1.0] * 10 + [100.0]
    assert clipped(norms)[10] == pytest.approx(100.0)


def test_after_going_back_it_warms_up_again() -> None:
    weight = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    clip = AdaptiveClip()
    for _ in range(CLIP_WARM_UP + 1):
        clip.before_step(optimizer, [torch.ones(4)], torch.tensor(2.0))
    assert clip.before_step(optimizer, [torch.full((4,), 50.0)], torch.tensor(100.0)) is not None
    clip.forget()
    assert clip.before_step(optimizer, [torch.ones(4)], torch.tensor(2.0)) is None


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=8), st.floats(0.01, 1000))
@example([49.048248291015625], 49.048249453918146)
def test_short_gradients_stay_bit_identical_and_long_ones_get_just_as_long_as_allowed(
    values: list[float], largest: float
) -> None:
    gradient = torch.tensor(values, dtype=torch.float32)
    before, norm = gradient.clone(), torch.linalg.vector_norm(gradient)
    clip_in_place([gradient], norm, largest)
    if norm <= largest:
        assert torch.equal(before, gradient)
    else:
        assert float(torch.linalg.vector_norm(gradient)) == pytest.approx(largest, rel=1e-4)


def test_gradients_that_are_not_finite_are_left_to_the_guard() -> None:
    gradient = torch.tensor([INF, 1.0])
    clip_in_place([gradient], torch.tensor(INF), 1.0)
    assert gradient.tolist() == [INF, 1.0]


def usual_loss(clip: AdaptiveClip | None) -> float:
    """A linear regression of which now and then a batch is far too large: the mean loss on sound batches."""
    torch.manual_seed(0)
    truth, model = torch.randn(8, 1), nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def loss_on(inputs: Tensor) -> Tensor:
        return (model(inputs) - inputs @ truth + 0.3 * torch.randn(len(inputs), 1)).square().mean()

    losses = []
    for step in range(400):
        inputs = torch.randn(32, 8) * (30.0 if step % 80 == 79 else 1.0)
        optimizer.zero_grad()
        loss = loss_on(inputs)
        loss.backward()
        if step >= 100 and step % 80 != 79:
            losses.append(float(loss.detach()))
        if clip is not None:
            norm = total_norm(gradients_of(optimizer))
            assert norm is not None
            clip.before_step(optimizer, gradients_of(optimizer), norm)
        optimizer.step()
    return sum(losses) / len(losses)


def test_a_training_that_spikes_stays_low_with_it_and_not_without() -> None:
    assert usual_loss(None) > 0.5
    assert usual_loss(AdaptiveClip()) < 0.15
