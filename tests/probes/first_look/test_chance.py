"""Chance level of a loss, from its graph."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from mlflow_stability.probes.first_look.loss_graph import chance_loss

LABELS = torch.tensor([0, 1, 2])


def outputs(*shape: int) -> Tensor:
    return torch.zeros(*shape, requires_grad=True)


def test_the_classes_of_one_mean_cross_entropy_are_counted() -> None:
    assert chance_loss(functional.cross_entropy(outputs(3, 7), LABELS)) == math.log(7)
    images = functional.cross_entropy(outputs(3, 5, 2, 2), torch.zeros(3, 2, 2, dtype=torch.long))
    assert chance_loss(images) == math.log(5)


@pytest.mark.parametrize("smallest", [0.0, 1e-8])
def test_the_logarithm_of_a_softmax_is_a_cross_entropy_as_well(smallest: float) -> None:
    probabilities = outputs(3, 7).softmax(1)
    assert chance_loss(functional.nll_loss((probabilities + smallest).log(), LABELS)) == math.log(7)
    assert chance_loss(functional.nll_loss(probabilities.clamp(min=1e-6).log(), LABELS)) == math.log(7)


OTHERS: dict[str, Callable[[], Tensor]] = {
    "a sum": lambda: functional.cross_entropy(outputs(3, 7), LABELS, reduction="sum"),
    "two losses": lambda: functional.cross_entropy(outputs(3, 7), LABELS) + outputs(3).sum(),
    "scaled": lambda: functional.cross_entropy(outputs(3, 7), LABELS) / 4,
    "a regression": lambda: functional.mse_loss(outputs(3), torch.ones(3)),
    "probabilities": lambda: functional.nll_loss(outputs(3, 7).softmax(1), LABELS),
    "no graph": lambda: torch.tensor(1.0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_of_other_losses_chance_level_is_not_known(name: str) -> None:
    assert chance_loss(OTHERS[name]()) is None
