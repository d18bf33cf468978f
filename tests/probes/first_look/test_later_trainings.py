from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from scenarios.flying import flying
from torch import nn
from torch.nn import functional

from mlflow_stability.probes.first_look.left_out import LeftOut

FEATURES, CLASSES = 6, 5


def classifier() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def train(model: nn.Module, trained: nn.Module, steps: int, last: Callable[[torch.Tensor], torch.Tensor]) -> None:
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    for _ in range(steps):
        loss = functional.cross_entropy(last(model(torch.randn(16, FEATURES))), torch.randint(0, CLASSES, (16,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def same(output: torch.Tensor) -> torch.Tensor:
    return output


def softmax(output: torch.Tensor) -> torch.Tensor:
    return output.softmax(1)


def test_a_training_that_follows_another_one_is_examined_from_its_own_first_step(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with flying(tmp_path) as flown:
        train(first := classifier(), first, 40, same)
        equal = classifier()
        for tensor in equal.parameters():
            nn.init.zeros_(tensor)
        train(equal, equal, 15, softmax)
    assert [event.step for event in flown.events("loss_input")] == [42]
    assert [event.step for event in flown.events("equal_weights")] == [41]


def test_parameters_that_a_later_training_forgets_are_found(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with flying(tmp_path) as flown:
        train(first := classifier(), first, 40, same)
        other = nn.Sequential(nn.Linear(FEATURES, 4), nn.ReLU(), nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, CLASSES))
        train(other, other[2:], 30, same)
    assert [event.step for event in flown.events("not_optimized")] == [60]


def test_layers_of_an_earlier_training_below_a_new_head_are_frozen_on_purpose(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with flying(tmp_path) as flown:
        train(first := classifier(), first, 40, same)
        head = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, CLASSES))
        train(nn.Sequential(first[:2], head), head, 30, same)
    assert flown.events("not_optimized") == []


def test_a_mistake_is_reported_once_in_a_recording(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with flying(tmp_path) as flown:
        for _ in range(3):
            train(model := classifier(), model, 20, softmax)
    assert [event.step for event in flown.events("loss_input")] == [2]


def test_gradients_left_over_from_an_earlier_training_are_no_mistake() -> None:
    look, model = LeftOut(), nn.ModuleDict({"used": nn.Linear(8, 8), "of_before": nn.Linear(2, 2)})
    optimizer = torch.optim.SGD(model["used"].parameters(), lr=0.1)
    for tensor in model.parameters():
        tensor.grad = torch.ones_like(tensor)
    for accumulates in (False, True):
        findings = []
        for step in (10, 20, 30):
            if accumulates:
                for tensor in model["of_before"].parameters():
                    assert tensor.grad is not None
                    tensor.grad += 1
            findings += look.look([model], [optimizer], step, list)
        assert [finding.kind for finding in findings] == ["not_optimized"] * (3 if accumulates else 0)
