"""Chance level of a loss, from its graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from mlflow_stability.probes.first_look.loss_graph import Chance, chance_of

LABELS = torch.tensor([0, 1, 2])


def outputs(*shape: int) -> Tensor:
    return torch.zeros(*shape, requires_grad=True)


def test_the_classes_of_one_mean_cross_entropy_are_counted() -> None:
    assert chance_of(functional.cross_entropy(outputs(3, 7), LABELS)) == Chance(7, 1.0)
    images = functional.cross_entropy(outputs(3, 5, 2, 2), torch.zeros(3, 2, 2, dtype=torch.long))
    assert chance_of(images) == Chance(5, 1.0)


@pytest.mark.parametrize("smallest", [0.0, 1e-8])
def test_the_logarithm_of_a_softmax_is_a_cross_entropy_as_well(smallest: float) -> None:
    probabilities = outputs(3, 7).softmax(1)
    assert chance_of(functional.nll_loss((probabilities + smallest).log(), LABELS)) == Chance(7, 1.0)
    assert chance_of(functional.nll_loss(probabilities.clamp(min=1e-6).log(), LABELS)) == Chance(7, 1.0)


OTHERS: dict[str, Callable[[], Tensor]] = {
    "a sum": lambda: functional.cross_entropy(outputs(3, 7), LABELS, reduction="sum"),
    "two losses": lambda: functional.cross_entropy(outputs(3, 7), LABELS) + outputs(3).sum(),
    "weighted": lambda: functional.cross_entropy(outputs(3, 7), LABELS) * outputs(3).exp().sum(),
    "a regression": lambda: functional.mse_loss(outputs(3), torch.ones(3)),
    "probabilities": lambda: functional.nll_loss(outputs(3, 7).softmax(1), LABELS),
    "no graph": lambda: torch.tensor(1.0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_of_other_losses_chance_level_is_not_known(name: str) -> None:
    assert chance_of(OTHERS[name]()) is None


@pytest.mark.parametrize("picks", ["gather", "index"])
def test_a_cross_entropy_that_is_written_by_hand_has_a_chance_level(picks: str) -> None:
    logarithms = outputs(3, 7).log_softmax(-1)
    if picks == "index":
        loss = -logarithms[torch.arange(3), LABELS].mean()
    else:
        loss = -logarithms.view(3, 1, 7).gather(2, LABELS.view(3, 1, 1)).squeeze().view(-1).mean()
    assert chance_of(loss) == Chance(7, 1.0)
    assert chance_of(-loss) is None


def test_a_division_by_a_number_leaves_a_share_of_a_cross_entropy() -> None:
    assert chance_of(functional.cross_entropy(outputs(3, 7), LABELS) / 4) == Chance(7, 0.25)
    assert chance_of(functional.cross_entropy(outputs(3, 7), LABELS) * 2 / 4) == Chance(7, 0.5)
    assert chance_of(functional.cross_entropy(outputs(3, 7), LABELS) / outputs(1).exp().sum()) is None
