"""Models with one thing wrong each, for the model check.

Weights and batches are multiples of 1/64, drawn by numpy: most products and sums of them are exact in single precision,
so that another order of summation on another processor changes no digit that the check prints.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

INPUTS, WIDTH, CLASSES, ROWS = 32, 64, 10, 64
Arguments = dict[str, Any]


def drawn(*shape: int, seed: int = 1) -> Tensor:
    """Multiples of 1/64 between -1 and 1."""
    return torch.from_numpy(np.random.default_rng(seed).integers(-64, 65, shape) / 64).float()


def with_drawn_weights(model: nn.Module) -> nn.Module:
    """The model with weights about as wide as torch's own initialisation makes them."""
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            fan_in = parameter.shape[1] if parameter.ndim > 1 else WIDTH
            # A power of two, so that the weights stay short binary fractions.
            parameter.copy_(drawn(*parameter.shape, seed=seed) * 2.0 ** round(-math.log2(fan_in) / 2))
    return model


def network() -> Any:
    """A classifier of two hidden layers."""
    layers = (nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
    return with_drawn_weights(nn.Sequential(*layers))


def batch() -> tuple[Tensor, Tensor]:
    """Inputs and classes."""
    return 2.0 * drawn(ROWS, INPUTS), torch.arange(ROWS) % CLASSES


def changed(change: Callable[[Any], object], *, with_batch: bool = False) -> Arguments:
    """The network after a change, alone or with the batch."""
    model = network()
    with torch.no_grad():
        change(model)
    return {"model": model, "batch": batch()} if with_batch else {"model": model}


def sound() -> Arguments:
    model = network()
    return {"model": model, "batch": batch(), "optimizer": AdamW(model.parameters())}


def other_optimizer() -> Arguments:
    model, other = network(), network()
    return {"model": model, "optimizer": SGD([*model[:2].parameters(), *other[2].parameters()], lr=0.1)}


def two_optimizers() -> Arguments:
    model = network()
    return {"model": model, "optimizer": [SGD(model.parameters(), lr=0.1), SGD(model[0].parameters(), lr=0.1)]}


def swapped_betas() -> Arguments:
    model = network()
    return {"model": model, "optimizer": AdamW(model.parameters(), betas=(0.999, 0.9))}


def epsilon_in_half_precision() -> Arguments:
    model = network().half()
    return {"model": model, "optimizer": Adam(model.parameters())}


def tied_and_frozen() -> Arguments:
    model = network()
    model[4] = nn.Linear(WIDTH, WIDTH)
    model[4].weight = model[2].weight
    model[4].bias.requires_grad_(False)
    with torch.no_grad():
        model[4].bias.copy_(drawn(WIDTH))
    return {"model": model}


def small_epsilon(*, half: bool) -> Arguments:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8, eps=1e-7 if half else 1e-12))
    with_drawn_weights(model)
    return {"model": model.half() if half else model}


class ScaledAttention(nn.Module):
    """Attention whose logits are scaled to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)
        self.scale = 1e-6


def small_scale() -> Arguments:
    return {"model": with_drawn_weights(nn.ModuleDict({"attention": ScaledAttention()}))}


def broken_statistics() -> Arguments:
    model = with_drawn_weights(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    model[1].running_var[2] = math.nan  # type: ignore[index]
    return {"model": model}


def vanishing_gradients() -> Arguments:
    layers = [layer for _ in range(12) for layer in (nn.Linear(INPUTS, INPUTS), nn.Sigmoid())]
    inputs, targets = batch()
    return {"model": with_drawn_weights(nn.Sequential(*layers, nn.Linear(INPUTS, 2))), "batch": (inputs, targets % 2)}


def saturated_units() -> Arguments:
    arguments = vanishing_gradients()
    with torch.no_grad():
        arguments["model"][0].weight *= 1000
    return arguments


class Forgetful(nn.Module):
    """A model with a part that its output does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.forgotten = nn.Linear(INPUTS, CLASSES), nn.Linear(INPUTS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.used(x)
        return output


class Adapted(nn.Module):
    """A layer with an adapter whose second matrix is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(INPUTS, CLASSES)
        self.down, self.up = nn.Linear(INPUTS, 4, bias=False), nn.Linear(4, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.base(x) + self.up(self.down(x))
        return output


def adapter_of_zeros() -> Arguments:
    model: Any = with_drawn_weights(Adapted())
    nn.init.zeros_(model.up.weight)
    return {"model": model, "batch": batch()}


class Distance(nn.Module):
    """The square root of zero, whose slope is infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.way = nn.Linear(INPUTS, 4)

    def forward(self, x: Tensor) -> Tensor:
        moved = self.way(x)
        return (moved - moved.detach()).square().sum(-1).sqrt().mean()


def exploding_gradients() -> Arguments:
    return {"model": with_drawn_weights(nn.Linear(INPUTS, 1)), "batch": (batch()[0], 1e5 * drawn(ROWS, 1, seed=2))}


def nan_in_the_batch() -> Arguments:
    inputs, targets = batch()
    inputs[0, 0] = math.nan
    return {"model": network(), "batch": (inputs, targets)}


def inputs_that_hold_the_targets() -> Arguments:
    _, targets = batch()
    model: Any = with_drawn_weights(nn.Sequential(nn.Identity(), nn.Linear(INPUTS, CLASSES, bias=False)))
    nn.init.eye_(model[1].weight)
    return {"model": model, "batch": (50.0 * nn.functional.one_hot(targets, INPUTS), targets)}


def values_on_no_device() -> Arguments:
    return {"model": network().to("meta"), "batch": batch()}


def set_values(tensor: Tensor, value: float) -> None:
    tensor.fill_(value)


CASES: dict[str, Callable[[], Arguments]] = {
    "sound": sound,
    "nothing but a model": lambda: {"model": network()},
    "non-finite values": lambda: changed(lambda model: set_values(model[0].weight[3, 4], math.nan)),
    "huge weights": lambda: changed(lambda model: model[2].weight.mul_(10)),
    "huge value": lambda: changed(lambda model: set_values(model[0].weight[0, 0], 1e30)),
    "tiny weights": lambda: changed(lambda model: [layer.weight.mul_(0.01) for layer in model[::2]]),
    "equal units": lambda: changed(lambda model: set_values(model[2].weight, 0.1)),
    "zero weights": lambda: changed(lambda model: [set_values(layer.weight, 0.0) for layer in model[::2]]),
    "nothing trainable": lambda: changed(lambda model: model.requires_grad_(False)),
    "non-finite buffer": broken_statistics,
    "parameters of another model": other_optimizer,
    "two optimizers": two_optimizers,
    "swapped betas": swapped_betas,
    "epsilon of Adam in half precision": epsilon_in_half_precision,
    "tied and frozen parameters": tied_and_frozen,
    "small epsilon": lambda: small_epsilon(half=False),
    "small epsilon in half precision": lambda: small_epsilon(half=True),
    "small attention scale": small_scale,
    "dead units": lambda: changed(lambda model: model[2].bias.sub_(10), with_batch=True),
    "vanishing gradients": vanishing_gradients,
    "saturated units": saturated_units,
    "unused parameters": lambda: {"model": with_drawn_weights(Forgetful()), "batch": batch()},
    "adapter of zeros": adapter_of_zeros,
    "loss above chance": lambda: changed(lambda model: model[4].weight.mul_(100), with_batch=True),
    "loss below chance": inputs_that_hold_the_targets,
    "exploding gradients": exploding_gradients,
    "non-finite gradients": lambda: {"model": with_drawn_weights(Distance()), "batch": batch()[0]},
    "NaN in the batch": nan_in_the_batch,
    "batch of another shape": lambda: {"model": network(), "batch": (drawn(4, 31), torch.zeros(4).long())},
    "targets out of range": lambda: {"model": network(), "batch": (batch()[0], batch()[1] + 5)},
    "no loss known": lambda: {"model": network(), "batch": batch()[0]},
    "values on no device": values_on_no_device,
}
