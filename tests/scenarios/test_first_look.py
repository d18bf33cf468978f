"""Quiet mistakes that the first steps of a watched training show."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scenarios.flying import flying
from torch import nn

from mlflow_stability.vocabulary.result import Severity


def train(*last: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), *last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        nn.CrossEntropyLoss()(model(torch.randn(16, 8)), torch.randint(0, 4, (16,))).backward()
        optimizer.step()


@pytest.mark.parametrize("last", [(nn.Softmax(1),), ()])
def test_a_model_that_ends_in_a_softmax_before_cross_entropy_is_found_at_once(
    tmp_path: Path, last: tuple[nn.Module, ...]
) -> None:
    with flying(tmp_path) as flown:
        train(*last)
    found = [(event.step, event.severity, event.message) for event in flown.events("loss_input")]
    message = "3 is a softmax, and its output goes into cross_entropy, which expects logits."
    assert found == ([(2, Severity.WARNING, message)] if last else [])
