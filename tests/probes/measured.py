"""Runs trainings with probes at the hooks of their optimizers, and the plain sums that they must agree with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mlflow_stability.probes.parameters.layers import Layers
from mlflow_stability.probes.probe import StepView
from mlflow_stability.probes.probe_scheduler import Probe

Row = dict[str, float]


class Measured:
    """Probes on some optimizers, one capture after another."""

    def __init__(self, optimizers: Sequence[Optimizer], probes: Sequence[Probe]) -> None:
        self.layers = Layers()
        self.probes = probes
        self.step = 0
        self._due: list[Probe] = []
        self.begin()
        for optimizer in optimizers:
            self.watch(optimizer)

    def watch(self, optimizer: Optimizer) -> None:
        optimizer.register_step_pre_hook(lambda stepping, args, kwargs: self._show(stepping, "before_step"))
        optimizer.register_step_post_hook(lambda stepping, args, kwargs: self._show(stepping, "after_step"))

    def begin(self) -> None:
        self._due = [probe for probe in self.probes if probe.due(self.step)]

    def _show(self, optimizer: Optimizer, place: str) -> None:
        view = StepView(optimizer, self.step, self.layers, getattr(optimizer, "grad_scale", None))
        for item in self._due:
            getattr(item, place)(view)

    def end(self) -> Row:
        """End the capture, and return what was measured in it."""
        row: Row = {}
        for probe in self._due:
            for block in probe.blocks(self.step):
                values = block.values.tolist() if isinstance(block.values, Tensor) else list(block.values)
                assert len(values) == len(block.signals)
                named = {str(signal): value for signal, value in zip(block.signals, values, strict=True)}
                assert not named.keys() & row.keys(), "nothing is measured twice"
                row |= named
        self.step += 1
        self.begin()
        return row


def norm(tensors: Iterable[Tensor | None]) -> float:
    """The L2 norm of all of them in double precision, value by value."""
    return math.sqrt(sum(float((tensor.detach().double() ** 2).sum()) for tensor in tensors if tensor is not None))


def by_layer(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """The parameters of each module that owns some, each once."""
    by_name: dict[str, list[nn.Parameter]] = {}
    seen: set[int] = set()
    for name, module in model.named_modules():
        own = [
            parameter
            for parameter in module.parameters(recurse=False)
            if parameter.requires_grad and id(parameter) not in seen
        ]
        seen |= {id(item) for item in own}
        if own:
            by_name[name or type(model).__name__] = own
    return by_name


def everywhere(model: nn.Module, quantity: str, of: Callable[[list[nn.Parameter]], float]) -> Row:
    """A quantity of the whole model and of each layer."""
    layers = by_layer(model)
    row = {f"{quantity}@{name}": of(parameters) for name, parameters in layers.items()}
    row[quantity] = of([parameter for parameters in layers.values() for parameter in parameters])
    return row


def must_be(row: Mapping[str, float], truth: Mapping[str, float], rel: float = 1e-5) -> None:
    """The same quantities, the same numbers."""
    assert sorted(row) == sorted(truth)
    assert dict(row) == pytest.approx(dict(truth), rel=rel, abs=1e-12, nan_ok=True)


def net(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Two hidden layers, a norm, and a layer inside a layer."""
    torch.manual_seed(seed)
    inner = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), inner, nn.Linear(16, 4, bias=False)).to(dtype)


def backward(model: Any, seed: int, scale: float = 1.0) -> None:
    """Gradients of a batch of its own for each seed."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(12, 8, generator=generator)
    loss = model(x.to(next(model.parameters()).dtype)).float().pow(2).mean()
    (loss * scale).backward()
