from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from probes.measured import Measured, backward, everywhere, must_be, net, norm
from torch import nn
from torch.optim import SGD, AdamW, Muon, NAdam, Optimizer

from mlflow_stability.probes.parameters.norms import MomentumNorm

MAKERS: dict[str, tuple[str, Callable[[nn.Module], list[Optimizer]]]] = {
    "adamw": ("exp_avg", lambda model: [AdamW(model.parameters(), lr=0.01)]),
    "nadam": ("exp_avg", lambda model: [NAdam(model.parameters(), lr=0.01)]),
    "momentum": ("momentum_buffer", lambda model: [SGD(model.parameters(), lr=0.1, momentum=0.9)]),
    "muon and momentum": (
        "momentum_buffer",
        lambda model: [
            Muon([parameter for parameter in model.parameters() if parameter.dim() == 2], lr=0.02),
            SGD([parameter for parameter in model.parameters() if parameter.dim() != 2], lr=0.1, momentum=0.5),
        ],
    ),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_is_that_of_the_buffers(name: str, dtype: torch.dtype) -> None:
    buffer, make = MAKERS[name]
    model = net(dtype=dtype)
    optimizers = make(model)
    measured = Measured(optimizers, [MomentumNorm(1, 1)])
    for seed in range(3):
        model.zero_grad()
        backward(model, seed)
        for optimizer in optimizers:
            optimizer.step()
        states = {parameter: state for optimizer in optimizers for parameter, state in optimizer.state.items()}
        truth = everywhere(model, "momentum_norm", lambda some, states=states: norm(states[p][buffer] for p in some))
        must_be(measured.end(), truth)


def test_without_momentum_nothing_is_measured_and_no_state_is_created() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    measured = Measured([optimizer], [MomentumNorm(1, 1)])
    backward(model, 0)
    optimizer.step()
    before = {parameter: dict(state) for parameter, state in optimizer.state.items()}
    assert measured.end() == {}
    assert {parameter: dict(state) for parameter, state in optimizer.state.items()} == before
