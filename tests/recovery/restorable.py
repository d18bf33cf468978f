"""Small trainings with every kind of optimizer, and a look at all of their bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mlflow_stability.recovery.spam_adam import SPAMAdam
from mlflow_stability.recovery.state.training_parts import TrainingParts

Make = Callable[[nn.Module], list[Optimizer]]


class Net(nn.Module):
    """Convolution, batch norm, dropout, a tied pair, a half-precision buffer and a mask of infinities."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.3)
        self.up, self.down = nn.Linear(8, 6), nn.Linear(8, 6)
        self.down.weight = self.up.weight
        self.head = nn.Linear(6, 1)
        self.register_buffer("narrow_sum", torch.ones(3, dtype=torch.bfloat16))
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.norm(self.convolution(x))).mean(1)
        self.narrow_sum.mul_(1.01)
        return self.head(self.up(x).relu() + self.down(x).tanh()).mean()


class Words(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 4, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.table((x.flatten()[:12].abs() * 7).long() % 32).pow(2).mean()


@dataclass
class Training:
    model: nn.Module
    optimizers: list[Optimizer]
    losses: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, make: Make, kind: type[nn.Module] = Net) -> Training:
        torch.manual_seed(5)
        model = kind()
        return cls(model, make(model))

    @property
    def parts(self) -> TrainingParts:
        return TrainingParts(tuple(self.optimizers), (self.model,))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            batch = torch.randn(6, 2, 8)

            def closure(batch: Tensor = batch) -> Tensor:
                for optimizer in self.optimizers:
                    optimizer.zero_grad()
                loss = (self.model(batch) - 1.0).pow(2)
                loss.backward()
                return loss

            if isinstance(self.optimizers[0], torch.optim.LBFGS):
                loss = self.optimizers[0].step(closure)
            else:
                loss = closure()
                for optimizer in self.optimizers:
                    optimizer.step()
            self.losses.append(loss.item())


def _one(kind: type[Optimizer], **settings: Any) -> Make:
    return lambda model: [kind(model.parameters(), **settings)]


def _muon_and_adamw(model: nn.Module) -> list[Optimizer]:
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim != 2]
    return [torch.optim.Muon(matrices, lr=1e-2), torch.optim.AdamW(others, lr=1e-2)]


OPTIMIZERS: dict[str, Make] = {
    "sgd": _one(torch.optim.SGD, lr=1e-2),
    "sgd momentum": _one(torch.optim.SGD, lr=1e-2, momentum=0.9, nesterov=True),
    "adam": _one(torch.optim.Adam, lr=1e-2),
    "adam amsgrad": _one(torch.optim.Adam, lr=1e-2, amsgrad=True),
    "adamw foreach": _one(torch.optim.AdamW, lr=1e-2, foreach=True),
    "adamw fused": _one(torch.optim.AdamW, lr=1e-2, fused=True),
    "adamw tensor lr": lambda model: [torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2))],
    "adafactor": _one(torch.optim.Adafactor, lr=1e-2),
    "muon and adamw": _muon_and_adamw,
    "lbfgs": _one(torch.optim.LBFGS, lr=0.1, history_size=4, max_iter=3),
    "nadam": _one(torch.optim.NAdam, lr=1e-2),
    "radam": _one(torch.optim.RAdam, lr=1e-2),
    "rmsprop": _one(torch.optim.RMSprop, lr=1e-2, centered=True, momentum=0.5),
    "adagrad": _one(torch.optim.Adagrad, lr=1e-2),
    "adadelta": _one(torch.optim.Adadelta),
    "adamax": _one(torch.optim.Adamax),
    "asgd": _one(torch.optim.ASGD),
    "rprop": _one(torch.optim.Rprop),
    "spam": _one(SPAMAdam, lr=1e-2, reset_every=3, warm_up=2),
}


def bits(training: Training) -> dict[str, Any]:
    """All of it that a step can change, as bytes and numbers."""
    by_name: dict[str, Any] = {}
    for name, item in training.model.state_dict().items():
        by_name[name] = _raw(item)
    for number, optimizer in enumerate(training.optimizers):
        places = [param for group in optimizer.param_groups for param in group["params"]]
        for place, parameter in enumerate(places):
            state = optimizer.state.get(parameter, {})
            by_name.update(_leaves(state, f"{number}.{place}"))
    return by_name


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{path}.{number}")
    else:
        yield path, _raw(value) if isinstance(value, Tensor) else value


def _raw(tensor: Tensor) -> tuple[Any, ...]:
    tensor = tensor.detach()
    content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), content
