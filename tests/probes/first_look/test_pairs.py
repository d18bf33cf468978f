"""Losses that compare every prediction with every target."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from mlflow_stability.kinds.first_look.loss_function import LossBroadcastFacts
from mlflow_stability.probes.first_look.graph_shapes import loss_over_pairs

ROWS = 6
TARGET = torch.randn(ROWS)


def column() -> Tensor:
    return functional.linear(torch.randn(ROWS, 3), torch.ones(1, 3, requires_grad=True))


WRONG: dict[str, Callable[[], Tensor]] = {
    "mse": lambda: functional.mse_loss(column(), TARGET),
    "smooth l1": lambda: functional.smooth_l1_loss(column(), TARGET),
    "huber": lambda: functional.huber_loss(column(), TARGET),
    "by hand": lambda: ((column() - TARGET) ** 2).mean(),
    "absolute by hand": lambda: (column() - TARGET).abs().mean() / 2 + 1,
    "column of targets": lambda: functional.mse_loss(column().squeeze(1), TARGET[:, None]),
}
SCORES, ADVANTAGES = torch.randn(ROWS, requires_grad=True), torch.randn(ROWS)
PRODUCTS: dict[str, Callable[[], Tensor]] = {
    "policy gradient": lambda: -(SCORES * ADVANTAGES[:, None]).mean() + 0.5 * column().mean(),
    "columns of scores": lambda: -(ADVANTAGES * column()).mean(),
    "clipped ratio": lambda: (
        -torch.min(SCORES.exp() * ADVANTAGES[:, None], SCORES.exp().clamp(0.8, 1.2) * ADVANTAGES[:, None]).mean()
    ),
}
RIGHT: dict[str, Callable[[], Tensor]] = {
    "mse": lambda: functional.mse_loss(column()[:, 0], TARGET),
    "columns": lambda: functional.mse_loss(column(), TARGET[:, None]),
    "by hand": lambda: ((column().squeeze() - TARGET) ** 2).mean(),
    "one target": lambda: functional.mse_loss(column(), torch.ones(1)),
    "square outputs": lambda: functional.mse_loss(torch.nn.Linear(3, ROWS)(torch.randn(ROWS, 3)), TARGET),
    "pairs on purpose": lambda: (column()[:, 0].unsqueeze(1) - TARGET).abs().mean(),
    "pairs of predictions": lambda: (lambda out: (out - out.squeeze(1)).abs().mean())(column()),
    "a number": lambda: column().sum(),
    "advantages": lambda: -(SCORES * ADVANTAGES).mean(),
    "a table of constants": lambda: (SCORES * torch.ones(ROWS, ROWS).tril()).sum(1).mean(),
    "products of pairs on purpose": lambda: (SCORES.unsqueeze(1) * ADVANTAGES).mean(),
    "products of scores": lambda: (SCORES[:, None] * SCORES).mean(),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_prediction_and_a_target_of_different_shapes_are_found(name: str) -> None:
    with warnings.catch_warnings(action="ignore"):
        finding = loss_over_pairs(WRONG[name](), 1)
    assert finding is not None
    assert finding.facts == LossBroadcastFacts(ROWS, is_column=name != "column of targets")


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_over_all_pairs_is_found(name: str) -> None:
    finding = loss_over_pairs(PRODUCTS[name](), 1)
    assert finding is not None
    assert finding.facts == LossBroadcastFacts(ROWS, is_column=name == "columns of scores", is_product=True)


@pytest.mark.parametrize("name", RIGHT)
def test_losses_of_equal_shapes_and_intentional_pairs_are_not_reported(name: str) -> None:
    with warnings.catch_warnings(action="ignore"):
        assert loss_over_pairs(RIGHT[name](), 1) is None


def test_the_sentence_names_both_shapes() -> None:
    assert LossBroadcastFacts(64, is_column=True).sentence(1) == (
        "The prediction has shape (64, 1) and the target (64,): the loss compares all 64 x 64 pairs, not each "
        "prediction with its own target."
    )
    assert "(64,) and the target (64, 1)" in LossBroadcastFacts(64, is_column=False).sentence(1)
    assert LossBroadcastFacts(64, is_column=False, is_product=True).sentence(1) == (
        "The loss multiplies values of shape (64,) by constants of shape (64, 1): it is a product of all 64 x 64 "
        "pairs, and its mean that of two means."
    )
