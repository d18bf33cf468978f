from __future__ import annotations

import pytest
import torch
from torch import nn

from mlflow_stability.recovery.easing import reset_momentum
from mlflow_stability.recovery.skipping.loss_scale import cap_loss_scale, conservative_grad_scaler


def test_it_begins_low_and_grows_slowly_and_takes_what_it_is_given() -> None:
    scaler = conservative_grad_scaler()
    assert (scaler.get_scale(), scaler.get_growth_factor(), scaler.get_growth_interval()) == (1024.0, 1.5, 200)
    assert conservative_grad_scaler("cpu", init_scale=8.0, growth_interval=5).get_growth_interval() == 5


def overflows(scaler: torch.amp.GradScaler) -> int:
    """How many of 700 steps are thrown away, where gradients above 65504 overflow as they do in fp16."""
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    thrown = 0
    for step in range(700):
        optimizer.zero_grad()
        scaler.scale((weight * (30.0 if step % 50 == 0 else 1.0)).sum()).backward()
        assert weight.grad is not None
        weight.grad.copy_(weight.grad.half().float())
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        thrown += scaler.get_scale() < before
    return thrown


def test_a_training_that_overflows_loses_fewer_steps_with_it() -> None:
    eager = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=20)
    assert overflows(conservative_grad_scaler("cpu")) <= 2
    assert overflows(eager) > 10


@pytest.mark.parametrize(("interval", "highest"), [(1, 50.0), (3, 32.0)])
def test_a_scale_with_a_limit_grows_as_far_as_it_can_and_never_beyond(interval: int, highest: float) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=interval)
    cap_loss_scale(scaler, 50.0)  # it has not scaled yet
    weight, scales = nn.Parameter(torch.ones(4)), list[float]()
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for _ in range(20):
        scaler.scale(weight.sum()).backward()
        scales.append(scaler.get_scale())
        scaler.step(optimizer)
        cap_loss_scale(scaler, 50.0)
        scaler.update()
    assert scales[:: 2 * interval][:2] == [4.0, 16.0]
    assert max(scales) == scales[-1] == highest
    cap_loss_scale(scaler, 9.0)
    assert scaler.get_scale() <= 9.0


def test_a_reset_sets_first_moments_to_zero_and_leaves_the_rest() -> None:
    weight = nn.Parameter(torch.ones(4))
    for optimizer in (torch.optim.Adam([weight]), torch.optim.SGD([weight], lr=0.1, momentum=0.9)):
        weight.grad = torch.ones(4)
        optimizer.step()
        state = optimizer.state[weight]
        first = state.get("exp_avg", state.get("momentum_buffer"))
        address, version = first.data_ptr(), first._version
        assert reset_momentum(optimizer) == 1
        assert first.tolist() == [0.0] * 4
        assert (first.data_ptr(), first._version) == (address, version)
        assert state.get("exp_avg_sq", torch.ones(1)).sum() > 0
