"""A meter with its hooks in torch and nothing behind it, and trainings small enough to be computed by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from mlflow_stability.probes.hooks.guarded_hooks import PartGuard
from mlflow_stability.probes.hooks.torch_hooks import TorchWatch
from mlflow_stability.probes.step.capture import ProbeReading
from mlflow_stability.probes.step.step_meter import StepMeter

Row = dict[str, float]


class Watched:
    """What was seen of a training."""

    def __init__(self) -> None:
        self.readings: list[ProbeReading] = []
        guard = PartGuard(strict=True, on_failure=lambda part, error: None)
        self.meter = StepMeter(guard, lambda optimizer: None, lambda owner, reading: self.readings.append(reading))
        self.watch = TorchWatch(guard, self.meter)

    def rows(self) -> list[Row]:
        """One row a capture, without the time it took."""
        self.meter.drain()
        return [
            {
                str(signal): value
                for signal, value in zip(reading.signals, reading.values, strict=True)
                if signal.quantity != "step_time"
            }
            for reading in self.readings
        ]

    def must_be(self, truth: list[Row]) -> None:
        """Compare with what the test computed itself: the same quantities, the same numbers, the same count."""
        rows = self.rows()
        assert [sorted(row) for row in rows] == [sorted(row) for row in truth]
        for row, true in zip(rows, truth, strict=True):
            assert row == pytest.approx(true, rel=1e-5, abs=1e-7, nan_ok=True)

    def bases(self) -> set[str]:
        """What the gradient norms stood for."""
        self.meter.drain()
        return {reading.norm_basis for reading in self.readings}


@contextmanager
def watching() -> Iterator[Watched]:
    """Watch torch as ``autolog()`` does, with every error raised, and leave it as it was."""
    watched = Watched()
    watched.watch.install()
    try:
        yield watched
    finally:
        watched.watch.remove()


def tiny_model(seed: int = 0) -> nn.Sequential:
    """Four inputs, one output, 33 parameters."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))


def batches(count: int, seed: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets, the same each time."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield torch.randn(8, 4, generator=generator), torch.randn(8, 1, generator=generator)


def true_norm(parameters: Iterable[Tensor]) -> float:
    """The L2 norm of all gradients, in double precision, the plain way."""
    squares = 0.0
    for parameter in parameters:
        if parameter.grad is not None:
            squares += float(parameter.grad.to_dense().double().square().sum())
    return math.sqrt(squares)


def mse(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean squared error of a batch."""
    return nn.functional.mse_loss(model(batch[0]), batch[1])
