"""Trainings that a look in the middle of them could end: they go on unchanged."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn

import mlflow_stability

pytestmark = [
    pytest.mark.scenario,
    pytest.mark.filterwarnings("ignore:`torch.jit.trace"),
]
STEPS = 12


@pytest.fixture(autouse=True)
def as_usual(tmp_path: Path, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", sqlite_uri)
    torch._dynamo.reset()
    yield
    mlflow_stability.autolog(disable=True)
    torch._dynamo.reset()
    sys.modules.pop("torch.nn.attention.bias", None)
    vars(torch.nn.attention).pop("bias", None)
    gc.collect()  # classes of tensors that keep operations from being counted


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.body(x)
        return output


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = Inner()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.part(x)
        return output


class Biased(Outer):
    def forward(self, x: Tensor) -> Tensor:
        bias = importlib.import_module("torch.nn.attention.bias").causal_lower_right(4, 4)
        x = self.part(x)[None, None]
        output: Tensor = nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=bias)
        return output


class Traced(Outer):
    def forward(self, x: Tensor) -> Tensor:
        plus_one: Any = torch.jit.trace(lambda z: z + 1, torch.ones(2))
        output: Tensor = plus_one(self.part(x))
        return output


class Nested(nn.Module):
    def __init__(self, levels: int) -> None:
        super().__init__()
        self.own = nn.Linear(6, 6)
        self.inner = Nested(levels - 1) if levels else None

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.own(x))
        return x if self.inner is None else self.inner(x)


def whole() -> nn.Module:
    return torch.compile(Outer(), backend="aot_eager", fullgraph=True)  # type: ignore[return-value]


def region() -> nn.Module:
    model = Outer()
    model.part.compile(backend="eager", fullgraph=True)
    return model


def trained(make: Callable[[], nn.Module]) -> list[Tensor]:
    torch._dynamo.reset()
    torch.manual_seed(5)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (model(torch.randn(4, 6)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(parameter.detach().clone() for parameter in model.parameters())]


@pytest.mark.parametrize("make", [whole, region, Biased, Traced, lambda: Nested(230)])
def test_a_training_goes_on_bit_for_bit(make: Callable[[], nn.Module]) -> None:
    bare = trained(make)
    mlflow_stability.autolog(offline=True)
    session = mlflow_stability.current_session()
    assert session is not None
    watched = trained(make)
    assert session.step == STEPS
    assert session.parts_off == {}
    assert all(torch.equal(first, other) for first, other in zip(bare, watched, strict=True))


def test_ctrl_c_in_a_pass_that_is_counted_leaves_no_mode_of_ours_when_watching_pauses() -> None:
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    class Interrupted(Outer):
        def forward(self, x: Tensor) -> Tensor:
            x = super().forward(x)
            if self.bad:
                raise KeyboardInterrupt
            return x

        bad = False

    mlflow_stability.autolog(offline=True)
    session = mlflow_stability.current_session()
    assert session is not None
    model = Interrupted()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for step in range(8):
        optimizer.zero_grad()
        model.bad = step == 4
        try:
            model(torch.ones(3, 6)).sum().backward()
        except KeyboardInterrupt:
            seen.append(_get_current_dispatch_mode())
            session.pause()
            seen.append(_get_current_dispatch_mode())
            session.resume()
        optimizer.step()
    assert seen[-1] is None
    assert len(seen) == 2
