"""Trainings in which the first non-finite number has a known origin."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from mlflow_stability.recovery.nan_origin.batch_capture import BatchCapture


class Halved(torch.autograd.Function):
    """Halves, and divides by zero on the way back where it is given a zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 0.5

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * 0.5 * x / x


class Step(nn.Module):
    """One thing done to what comes in."""

    def __init__(self, do: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.do = do

    def forward(self, x: Tensor) -> Tensor:
        return self.do(x)


class Net(nn.Module):
    """Two layers with something between them."""

    def __init__(self, between: nn.Module | None = None, first: nn.Module | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4) if first is None else first
        self.between = nn.Identity() if between is None else between
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(self.between(self.first(x)))
        return output


class Tokens(nn.Module):
    """An embedding and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        output: Tensor = self.last(self.words(ids).mean(1))
        return output


def squares(outputs: Tensor) -> Tensor:
    return outputs.square().mean()


@dataclass
class Plant:
    """A training of a few steps, of which the last one breaks."""

    model: nn.Module
    source: str
    """The origin of the number."""
    module: str
    operation: str
    loss: Callable[[Tensor], Tensor] = squares
    make: Callable[[Any], Optimizer] = field(default=lambda parameters: SGD(parameters, lr=0.01))
    batch: Callable[[int], Tensor] = field(default=lambda step: torch.randn(6, 4))
    before_step: Callable[[int, nn.Module, Optimizer], None] = field(default=lambda step, model, optimizer: None)
    line: str = ""
    """What the user's line must hold."""
    steps: int = 4


LAST = 4


def last(then: Callable[[Tensor], Tensor]) -> Callable[[int], Tensor]:
    """Batches of which the last is changed."""
    return lambda step: then(torch.randn(6, 4)) if step == LAST else torch.randn(6, 4)


def an_input() -> Plant:
    def spoil(x: Tensor) -> Tensor:
        x[2, 1] = math.nan
        return x

    return Plant(Net(), "input", "first", "", batch=last(spoil))


def an_embedding() -> Plant:
    """A row that no batch needed until now, from the beginning."""
    model = Tokens()
    with torch.no_grad():
        model.words.weight[7] = math.nan
    ids = torch.tensor([[1, 2], [3, 4]])
    batch: Callable[[int], Tensor] = lambda step: ids + 3 if step == LAST else ids  # noqa: E731
    return Plant(model, "weight", "words", "weight", batch=batch)


def a_layer_norm() -> Plant:
    """Of rows that are constant, with nothing added to their variance."""
    model = Net(nn.LayerNorm(4, eps=0.0), first=nn.Identity())
    return Plant(model, "forward", "between", "layer_norm", batch=last(torch.ones_like))


def a_softmax() -> Plant:
    """Of a row in which everything is ruled out, with a minus infinity that is meant."""

    def attend(x: Tensor) -> Tensor:
        return x.masked_fill(x.abs() < 1e-9, -math.inf).softmax(-1)

    return Plant(Net(Step(attend), nn.Identity()), "forward", "between", "softmax", batch=last(torch.zeros_like))


def a_logarithm() -> Plant:
    def logarithm(x: Tensor) -> Tensor:
        return torch.log(x)

    batch = last(lambda x: -x.abs())
    later: Callable[[int], Tensor] = lambda step: batch(step) if step == LAST else batch(step).abs() + 1  # noqa: E731
    return Plant(Net(Step(logarithm), nn.Identity()), "forward", "between", "log", batch=later, line="logarithm")


def a_root() -> Plant:
    """Whose slope at zero is infinite: the forward pass is sound."""

    def length(x: Tensor) -> Tensor:
        return torch.sqrt(x.square())

    model = Net(Step(length), nn.Linear(4, 4, bias=False))
    return Plant(model, "backward", "between", "sqrt", batch=last(torch.zeros_like), line="in a_root.length")


def a_division() -> Plant:
    def share(x: Tensor) -> Tensor:
        return x / x.sum(-1, keepdim=True)

    return Plant(Net(Step(share), nn.Identity()), "forward", "between", "div", batch=last(torch.zeros_like))


def an_overflow() -> Plant:
    """Of a product of matrices in half precision."""

    def multiply(x: Tensor) -> Tensor:
        half = x.half()
        return torch.mm(half, half.t())[:, :4].float()

    return Plant(Net(Step(multiply), nn.Identity()), "forward", "between", "mm", batch=last(lambda x: x * 1e4))


def a_function_of_ones_own() -> Plant:
    model = Net(Step(Halved.apply), nn.Linear(4, 4, bias=False))
    return Plant(model, "backward", "between", "Halved", batch=last(torch.zeros_like), line="Halved.backward")


def a_loss() -> Plant:
    """Of a probability that is zero."""

    def likelihood(outputs: Tensor) -> Tensor:
        return -torch.log(outputs.softmax(-1)[:, 0]).mean()

    return Plant(Net(), "loss", "", "log", loss=likelihood, batch=last(lambda x: x * 1e6))


class Hooked(nn.Module):
    """A model whose output has a hook that multiplies its gradient, as a loss scale made by hand does."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.scale = 1.0

    def forward(self, given: Tensor) -> Tensor:
        outputs: Tensor = self.net(given)
        if outputs.requires_grad:
            scale = self.scale
            outputs.register_hook(lambda gradient: gradient * scale)  # type: ignore[no-untyped-call]
        return outputs


def a_hook_on_the_output() -> Plant:
    def spoil(step: int, model: nn.Module, optimizer: Optimizer) -> None:
        assert isinstance(model, Hooked)
        model.scale = math.inf if step == LAST else 1.0

    return Plant(Hooked(), "loss", "", "", before_step=spoil)


def an_optimizer() -> Plant:
    """Whose running averages have become infinite."""

    def spoil(step: int, model: nn.Module, optimizer: Optimizer) -> None:
        if step == LAST - 1:
            next(iter(optimizer.state.values()))["momentum_buffer"][0] = math.inf

    return Plant(Net(), "optimizer", "first", "SGD", make=lambda p: SGD(p, lr=0.01, momentum=0.9), before_step=spoil)


def an_optimizer_without_eps() -> Plant:
    """Which divides zero by zero for a row that had no gradient yet."""
    batch: Callable[[int], Tensor] = lambda step: torch.tensor([[8, 9]] if step == LAST else [[1, 2]])  # noqa: E731
    return Plant(Tokens(), "optimizer", "words", "Adam", make=lambda p: Adam(p, eps=0.0), batch=batch)


def a_weight() -> Plant:
    def spoil(step: int, model: nn.Module, optimizer: Optimizer) -> None:
        if step == LAST:
            with torch.no_grad():
                model.get_parameter("last.bias")[1] = math.inf

    return Plant(Net(), "weight", "last", "bias", before_step=spoil)


PLANTS: Sequence[Callable[[], Plant]] = (
    an_input,
    an_embedding,
    a_layer_norm,
    a_softmax,
    a_logarithm,
    a_root,
    a_division,
    an_overflow,
    a_function_of_ones_own,
    a_loss,
    an_optimizer,
    an_optimizer_without_eps,
    a_weight,
)


def train(
    plant: Plant,
    hear: Callable[[int, nn.Module, Tensor, Tensor, Optimizer], None] | None = None,
    capture: BatchCapture | None = None,
) -> None:
    """Train; `hear` is called before each step, and `capture` of each backward pass."""
    optimizer = plant.make(plant.model.parameters())
    for step in range(1, plant.steps + 1):
        batch = plant.batch(step)
        spoil = plant.before_step
        spoil(step, plant.model, optimizer) if step == LAST else None
        optimizer.zero_grad()
        outputs = plant.model(batch)
        loss = plant.loss(outputs)
        if capture is not None:
            capture.gradients_begin()
        loss.backward()
        if capture is not None:
            capture.gradients_end()
        if hear is not None:
            hear(step, plant.model, outputs, loss, optimizer)
        if step != LAST:
            spoil(step, plant.model, optimizer)
            optimizer.step()
