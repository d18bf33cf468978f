"""Writes to the weights between two steps are seen, and those of the optimizer are not taken for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from scenarios.flown_history import recorded
from scenarios.flying import flying
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lbfgs import LBFGS

pytestmark = pytest.mark.scenario
Write = Callable[[int, nn.Module], None]


def measured(
    folder: Path,
    write: Write = lambda step, model: None,
    make: Callable[..., Optimizer] = Adam,
    size: Callable[[int], float] = lambda step: 1.0,
) -> dict[str, dict[int, float]]:
    """What was recorded of a training of 60 steps, by signal and step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = make(model.parameters(), lr=1e-3)
    with flying(folder) as flown:
        for step in range(1, 61):
            inputs = torch.randn(16, 4)

            def closure(inputs: torch.Tensor = inputs, size: float = size(step)) -> torch.Tensor:
                optimizer.zero_grad()
                loss = size * model(inputs).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
            write(step, model)
    by_name = {metric.name: metric.series for metric in recorded(flown).metrics if metric.name.startswith("foreign_")}
    return {
        name: dict(zip(reading.steps.tolist(), reading.values.tolist(), strict=True))
        for name, reading in by_name.items()
    }


@pytest.mark.parametrize("make", [Adam, SGD, LBFGS])
def test_a_training_without_foreign_writes_has_no_such_value(tmp_path: Path, make: Callable[..., Optimizer]) -> None:
    assert measured(tmp_path, make=make) == {}


def test_steps_of_lbfgs_with_more_iterations_than_others_are_no_foreign_writes(tmp_path: Path) -> None:
    assert measured(tmp_path, make=LBFGS, size=lambda step: float(step % 10 > 2)) == {}


def test_a_write_is_counted_at_the_next_measurement_and_its_size_is_measured_between_consecutive_ones(
    tmp_path: Path,
) -> None:
    def double(step: int, model: nn.Module) -> None:
        if step in (40, 55):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(2.0)

    measurements = measured(tmp_path, double)
    assert measurements["foreign_writes"] == {41: 4.0, 60: 4.0}
    assert measurements["foreign_update"] == pytest.approx({41: 1.0})


def test_a_change_through_data_leaves_no_count_but_a_change(tmp_path: Path) -> None:
    def halve(step: int, model: nn.Module) -> None:
        if step in (40, 51):
            for parameter in model.parameters():
                parameter.data.mul_(0.5)

    measurements = measured(tmp_path, halve)
    assert "foreign_writes" not in measurements
    assert measurements["foreign_update"] == pytest.approx({41: 0.5, 52: 0.5})


def test_weights_that_are_restored_before_the_next_step_have_not_changed(tmp_path: Path) -> None:
    def swap(step: int, model: nn.Module) -> None:
        if step == 40:
            kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            model.load_state_dict({name: 0.0 * value for name, value in kept.items()})
            model.load_state_dict(kept)

    measurements = measured(tmp_path, swap)
    assert measurements == {"foreign_writes": {41: 8.0}}
