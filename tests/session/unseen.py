"""A training script whose steps no hook sees, or one without anything to report: `python unseen.py KIND FOLDER`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import mlflow_stability


class OwnOptimizer:
    """Of no class of torch's, as Keras and fastai have theirs."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = list(parameters)

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.parameters:
            parameter -= 0.01 * parameter.grad
            parameter.grad = None


def loss_of(model: nn.Module) -> Tensor:
    return nn.functional.mse_loss(model(torch.randn(8, 4)), torch.randn(8, 1))


def own_optimizer(steps: int = 20) -> None:
    model = nn.Linear(4, 1)
    optimizer = OwnOptimizer(model.parameters())
    for _ in range(steps):
        loss_of(model).backward()
        optimizer.step()


def compiled_step() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    @torch.compile(backend="aot_eager")
    def train_step(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for _ in range(5):
        train_step(torch.randn(8, 4), torch.randn(8, 1))


def by_torch_func() -> None:
    values = {"weight": torch.zeros(1, 4), "bias": torch.zeros(1)}

    def loss(values: dict[str, Tensor]) -> Tensor:
        return nn.functional.mse_loss(nn.functional.linear(torch.randn(8, 4), **values), torch.randn(8, 1))

    for _ in range(500):
        gradients = torch.func.grad(loss)(values)
        values = {name: value - 0.01 * gradients[name] for name, value in values.items()}


def healthy() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(5):
        loss_of(model).backward()
        optimizer.step()


def begin() -> None:
    """What most scripts have done when something fails before their first step."""
    torch.optim.SGD(nn.Linear(4, 1).parameters(), lr=0.01)
    for _ in range(4):
        loss_of(nn.Linear(4, 1)).backward()


def crashed() -> None:
    begin()
    raise RuntimeError("before the first step")


def exited() -> None:
    begin()
    try:
        raise RuntimeError("before the first step")
    except RuntimeError as error:
        print(error)
    sys.exit(1)


def left() -> None:
    """As Lightning leaves after Ctrl-C."""
    begin()
    exit(1)


def interrupted() -> None:
    begin()
    raise KeyboardInterrupt


def evaluation() -> None:
    """Forget `no_grad`, and make an optimizer that takes no step."""
    model = nn.Linear(4, 1)
    torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(600):
        loss_of(model)


def by_hand() -> None:
    model = nn.Linear(4, 1)
    optimizer = OwnOptimizer(model.parameters())
    options = mlflow_stability.Options(journal_dir=sys.argv[2], exit_wait=0)
    with mlflow_stability.attach(model, strict=True, options=options) as session:
        for _ in range(300):
            loss = loss_of(model)
            loss.backward()
            session.step(loss)
            optimizer.step()


def prediction() -> None:
    with torch.no_grad():
        nn.Linear(4, 1)(torch.ones(2, 4))


KINDS: dict[str, Callable[[], None]] = {
    item.__name__: item
    for item in (
        *(own_optimizer, compiled_step, by_torch_func, healthy, by_hand),
        *(crashed, exited, left, interrupted, evaluation, prediction),
    )
}

if __name__ == "__main__":
    mlflow_stability.autolog(strict=True, options=mlflow_stability.Options(journal_dir=sys.argv[2], exit_wait=0))
    KINDS[sys.argv[1]]()
