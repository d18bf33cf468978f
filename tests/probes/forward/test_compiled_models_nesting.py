from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor, nn

from mlflow_stability.probes.forward.compiled_models import FRAMES_PER_MODULE, depth_of, too_deep


class Doll(nn.Module):
    """A module in a module in a module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inner(x)
        return output


def dolls(count: int) -> nn.Module:
    model: nn.Module = nn.Tanh()
    for _ in range(count):
        model = Doll(model)
    return model


def test_the_depth_is_that_of_the_innermost_module() -> None:
    assert depth_of(nn.Tanh()) == 1
    assert depth_of(dolls(3)) == 4
    assert depth_of(nn.Sequential(nn.Tanh(), dolls(5), nn.Tanh())) == 7


def test_what_people_train_is_not_too_deep(usual_recursion_limit: int) -> None:
    assert not too_deep(nn.Transformer(8, 2, 2, 2, 16, batch_first=True))
    assert not too_deep(dolls(40))


def test_it_is_too_deep_where_the_stack_is_full_already(usual_recursion_limit: int) -> None:
    def below(calls: int) -> bool:
        return below(calls - 1) if calls else too_deep(dolls(40))

    assert not below(10)
    assert below(usual_recursion_limit // 2)


@pytest.mark.parametrize("limit", [1000, 3000])
def test_every_measured_model_has_room_for_hooks_on_every_level(limit: int) -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)
    try:
        model = dolls(limit // FRAMES_PER_MODULE)
        while too_deep(model):
            model = model.get_submodule("inner")
        for module in model.modules():
            module.register_forward_hook(lambda *_: None)
            module.register_forward_pre_hook(lambda *_: None)
        assert model(torch.ones(2)).isfinite().all()
    finally:
        sys.setrecursionlimit(before)
