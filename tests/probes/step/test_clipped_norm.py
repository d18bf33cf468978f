from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scenarios.watching import Watched, batches, mse, tiny_model, true_norm
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD

import mlflow_stability.probes.step.step_meter as meter
from mlflow_stability.probes.step.script_gradients import MEASURED_EVERY

STEPS = 3 * MEASURED_EVERY
MAX_NORM = 0.1


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The norms that were measured, and not worked out."""
    values: list[float] = []

    def total_norm(gradients: list[torch.Tensor]) -> torch.Tensor | None:
        norm = of_all(gradients)
        if norm is not None:
            values.append(float(norm))
        return norm

    of_all = meter.total_norm
    monkeypatch.setattr(meter, "total_norm", total_norm)
    return values


def train(watched: Watched, change: Callable[[nn.Module, int], object]) -> list[float]:
    """Train with clipping and a change after it; give the norms that the optimizer got."""
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    given = []
    watched.watch.install()
    try:
        for step, batch in enumerate(batches(STEPS)):
            optimizer.zero_grad()
            mse(model, batch).backward()
            clip_grad_norm_(model.parameters(), MAX_NORM)
            change(model, step)
            given.append(true_norm(model.parameters()))
            optimizer.step()
    finally:
        watched.watch.remove()
    return given


def recorded(watched: Watched) -> list[float]:
    return [row["grad_norm_clipped"] for row in watched.rows()]


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def test_one_norm_in_ten_is_measured_and_the_others_are_the_same_numbers(
    watched: Watched, measured: list[float]
) -> None:
    given = train(watched, lambda model, step: None)
    assert recorded(watched) == pytest.approx(given, rel=1e-5)
    assert len(measured) == STEPS / MEASURED_EVERY


def test_gradients_that_were_written_to_after_clipping_are_measured(watched: Watched, measured: list[float]) -> None:
    given = train(watched, lambda model, step: gradients(model)[0].mul_(3.0) if step % 4 == 3 else None)
    assert recorded(watched) == pytest.approx(given, rel=1e-5)
    assert len(measured) > STEPS / MEASURED_EVERY


def test_gradients_that_were_replaced_after_clipping_are_measured(watched: Watched, measured: list[float]) -> None:
    def replace(model: nn.Module, _: int) -> None:
        first = next(model.parameters())
        assert first.grad is not None
        first.grad = first.grad * 3.0

    given = train(watched, replace)
    assert recorded(watched) == pytest.approx(given, rel=1e-5)
    assert len(measured) == STEPS


def test_where_gradients_are_written_to_uncounted_every_norm_is_measured(
    watched: Watched, measured: list[float]
) -> None:
    given = train(watched, lambda model, _: gradients(model)[0].data.mul_(3.0))
    assert recorded(watched) == pytest.approx(given, rel=1e-5)
    assert len(measured) == STEPS


def test_clipping_by_a_norm_of_several_processes_is_measured(watched: Watched, measured: list[float]) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    given = []
    watched.watch.install()
    try:
        for batch in batches(STEPS):
            optimizer.zero_grad()
            mse(model, batch).backward()
            norm = torch.nn.utils.get_total_norm(gradients(model))
            torch.nn.utils.clip_grads_with_norm_(list(model.parameters()), MAX_NORM, 2 * norm)
            given.append(true_norm(model.parameters()))
            optimizer.step()
    finally:
        watched.watch.remove()
    assert recorded(watched) == pytest.approx(given, rel=1e-5)
    assert len(measured) == STEPS


def test_a_norm_that_is_not_finite_is_measured(watched: Watched) -> None:
    def spoil(model: nn.Module, step: int) -> None:
        if step == 15:
            gradients(model)[0].fill_(math.nan)

    given = train(watched, spoil)
    assert recorded(watched) == pytest.approx(given, rel=1e-5, nan_ok=True)
    assert math.isnan(recorded(watched)[15])
