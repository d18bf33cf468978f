"""Models that keep something from one call to the next, each in another place; what comes out depends on it."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

DICE = torch.Generator()
NOTED: list[Tensor] = []


class SnapshotManager(nn.Module):
    """A linear layer, and a number that is another one at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.linear(x) * (1.0 + self.number())
        return output

    def number(self) -> Any:
        raise NotImplementedError


class GeneratorAtDepth(SnapshotManager):
    def __init__(self) -> None:
        super().__init__()
        self.noise = {"dice": [torch.Generator().manual_seed(3)]}

    def number(self) -> Tensor:
        return torch.rand((), generator=self.noise["dice"][0])


class SharedGenerator(SnapshotManager):
    def number(self) -> Tensor:
        return torch.rand((), generator=DICE)


class Slotted:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


@dataclass
class Helper:
    calls: int = 0
    seen: list[int] = field(default_factory=list)
    mean: Tensor = field(default_factory=lambda: torch.zeros(3))
    slotted: Slotted = field(default_factory=Slotted)

    def take(self) -> Tensor:
        self.calls += 1
        self.slotted.count += 2
        self.seen.append(self.calls)
        self.mean.mul_(0.9).add_(len(self.seen))
        return self.mean * 0.01 + self.slotted.count


class HelperObject(SnapshotManager):
    def __init__(self) -> None:
        super().__init__()
        self.helper = Helper()

    def number(self) -> Tensor:
        return self.helper.take()


class NestedTensors(SnapshotManager):
    def __init__(self) -> None:
        super().__init__()
        self.kept = {"a": {"b": torch.zeros(3)}, "numpy": np.zeros(2)}

    def number(self) -> Any:
        self.kept["a"]["b"].data += 1  # type: ignore[index]
        self.kept["numpy"][0] += 0.5  # type: ignore[index]
        return self.kept["a"]["b"] + float(self.kept["numpy"][0])  # type: ignore[index]


class LargeTensor(SnapshotManager):
    def __init__(self) -> None:
        super().__init__()
        self.large = torch.zeros(2**19)

    def number(self) -> Tensor:
        self.large[7] += 1
        return self.large[7]


class ClassAttribute(SnapshotManager):
    calls = 0
    seen: ClassVar[list[int]] = []

    def number(self) -> float:
        type(self).calls += 1
        self.seen.append(self.calls)
        return float(len(self.seen) + self.calls)


def counting() -> Callable[[], int]:
    count, past = 0, [0]

    def count_one() -> int:
        nonlocal count
        count += 1
        past[0] += count
        return past[0]

    return count_one


class Closure(SnapshotManager):
    def __init__(self) -> None:
        super().__init__()
        self.counts = functools.partial(counting())

    def number(self) -> float:
        return float(self.counts())


class Weights(SnapshotManager):
    """Writes to its own weights, as some normalise them."""

    def number(self) -> Tensor:
        self.linear.weight.data = self.linear.weight.data * 0.99
        with torch.no_grad():
            self.linear.bias += 0.5
        self.linear.bias.data.mul_(1.1)
        return self.linear.bias.detach()


class Streaming(SnapshotManager):
    def __init__(self) -> None:
        super().__init__()
        self.stream = iter(range(10**9))

    def number(self) -> float:
        return float(next(self.stream))


class NumpyGenerator(SnapshotManager):
    def __init__(self) -> None:
        super().__init__()
        self.dice = [np.random.default_rng(3)]

    def number(self) -> float:
        return float(self.dice[0].random())


class PythonGenerator(SnapshotManager):
    def __init__(self) -> None:
        super().__init__()
        self.dice = random.Random(3)

    def number(self) -> float:
        return self.dice.random()


class Hooked(SnapshotManager):
    """Its hook writes down what comes out, in a list of the script."""

    def __init__(self) -> None:
        super().__init__()
        self.linear.register_forward_hook(lambda _module, _args, output: NOTED.append(output))

    def number(self) -> float:
        return float(len(NOTED))


RESTORED: tuple[type[SnapshotManager], ...] = (
    GeneratorAtDepth,
    SharedGenerator,
    HelperObject,
    NestedTensors,
    LargeTensor,
    ClassAttribute,
    Weights,
)
NOT_RUN_AGAIN: dict[type[SnapshotManager], str] = {
    Closure: "Closure.counts is a function with variables of its own (a closure)",
    Streaming: "Streaming.stream is of type range_iterator, whose state cannot be put back",
    NumpyGenerator: "NumpyGenerator.dice[0] is of type Generator, whose state cannot be put back",
    PythonGenerator: "PythonGenerator.dice is of type Random, whose state cannot be put back",
    Hooked: "a hook of Hooked.linear is a function of the script, which may write anything",
}


def made(kind: type[SnapshotManager]) -> SnapshotManager:
    """A model of this kind, the same each time."""
    torch.manual_seed(0)
    DICE.manual_seed(5)
    NOTED.clear()
    ClassAttribute.calls = 0
    ClassAttribute.seen.clear()
    return kind()
