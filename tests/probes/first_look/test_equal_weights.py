"""Whether weights differ before the first step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mlflow_stability.probes.first_look.first_look import equal_weights


def share(model: nn.Module) -> float | None:
    blocks = equal_weights(torch.optim.SGD(model.parameters(), lr=0.1))
    return float(blocks[0].values[0]) if blocks else None


@pytest.mark.parametrize("value", [0.0, 0.05])
def test_matrices_with_one_value_are_counted(value: float) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3), nn.Conv2d(2, 3, 3))
    assert share(model) == 0.0
    nn.init.constant_(model[1].weight, value)
    assert share(model) == pytest.approx(1 / 3)
    for parameter in model.parameters():
        nn.init.constant_(parameter, value)
    assert share(model) == 1.0


def test_a_single_matrix_and_single_units_are_not_reported() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    assert share(model) is None
