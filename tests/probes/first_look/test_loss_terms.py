"""The terms of a loss and their weights, from its graph."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from mlflow_stability.probes.first_look.loss_graph import MAX_CHANGES, MAX_TURNS, LossTerms, Terms, chance_of, terms_of

LABELS = torch.tensor([0, 1, 2])
X = torch.ones(3, 3, requires_grad=True)


def fit() -> Tensor:
    return functional.cross_entropy(X, LABELS)


LOSSES: dict[str, tuple[Callable[[], Tensor], Terms]] = {
    "one": (fit, Terms(1, ())),
    "a share of a batch": (lambda: fit() / 4, Terms(1, ())),
    "a penalty": (lambda: fit() + 0.3 * X.pow(2).sum(), Terms(2, (0.3,))),
    "a quotient": (lambda: fit() - X.exp().mean() / 8, Terms(2, (0.125,))),
    "within a mean": (lambda: (X.sum(1) - 0.2 * X.exp().sum(1)).mean(), Terms(2, (0.2,))),
    "two weights": (lambda: 0.75 * fit() + X.abs().sum() * torch.tensor(0.25), Terms(2, (0.75, 0.25))),
    "a learnt weight": (lambda: fit() * X.exp().sum() + X.abs().sum(), Terms(2, ())),
    "all scaled": (lambda: 1024.0 * (fit() + X.abs().sum()), Terms(2, ())),
}


@pytest.mark.parametrize("name", LOSSES)
def test_terms_are_counted_and_their_weights_read(name: str) -> None:
    loss, expected = LOSSES[name]
    assert terms_of(loss()) == expected


def test_a_checkpointed_loss_is_not_computed_once_more() -> None:
    calls = 0

    def weighted() -> Tensor:
        nonlocal calls
        calls += 1
        return fit() * torch.tensor(0.5)

    fitted = checkpoint(weighted, use_reentrant=False)
    loss = fitted + X.abs().sum()
    assert chance_of(fitted) is None
    assert terms_of(loss) == Terms(2, ())
    assert calls == 1
    loss.backward()
    assert calls == 2


class Watched:
    """A probe that is shown the losses of one step after another."""

    def __init__(self) -> None:
        self.step, self.asked = 0, 0
        self.probe = LossTerms(lambda: self.step, self.ask)

    def ask(self) -> None:
        self.asked += 1

    def see(self, *losses: Tensor) -> dict[str, float]:
        """Return what is recorded in the next step."""
        self.step += 1
        for loss in losses:
            self.probe.at_loss(loss)
        due = self.probe.due(self.step)
        values = {str(block.signals[0]): block.values[0] for block in self.probe.blocks(self.step)}
        assert due == bool(values)
        return {name: float(value) for name, value in values.items()}


class Kept:
    """What a graph holds as long as it lives."""


class Holding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Kept) -> Tensor:
        ctx.kept = kept
        return x.sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, None]:
        return gradients[0].expand(3, 3), None


def test_the_graph_of_a_loss_that_was_seen_is_not_kept_alive() -> None:
    watched, kept = Watched(), Kept()
    graph = weakref.ref(kept)
    for weight in (0.5, 0.25):
        loss = fit() + weight * Holding.apply(X, kept)  # type: ignore[no-untyped-call]
        watched.see(loss)
    del kept
    assert graph() is not None
    del loss
    gc.collect()
    assert graph() is None


def test_the_number_of_terms_is_recorded_when_it_changes() -> None:
    watched = Watched()
    assert watched.see(fit()) == {"loss_terms": 1.0}
    assert watched.see(fit()) == {}
    assert watched.see(fit() + X.sum()) == {"loss_terms": 2.0}
    assert watched.see(fit() + X.sum()) == {}
    assert watched.asked == 2


def test_of_several_losses_in_a_step_the_one_with_the_most_terms_counts() -> None:
    watched = Watched()
    assert watched.see(fit() + X.sum(), fit()) == {"loss_terms": 2.0}
    assert [watched.see(fit() + X.sum(), fit()) for _ in range(3)] == [{}, {}, {}]
    assert watched.see(fit(), fit() + X.sum(), fit()) == {}
    watched.see(fit())
    assert watched.see(fit()) == {"loss_terms": 1.0}


def test_a_step_of_two_losses_records_one_number_and_the_next_step_the_other() -> None:
    watched = Watched()
    assert watched.see(fit()) == {"loss_terms": 1.0}
    watched.probe.at_loss(fit() + X.sum())
    assert not watched.probe.due(watched.step)
    assert watched.see(fit(), fit() + X.sum()) == {"loss_terms": 2.0}
    assert watched.see(fit(), fit() + X.sum()) == {}


def test_a_weight_is_recorded_every_ten_steps_while_it_changes() -> None:
    watched = Watched()
    seen = [watched.see(fit() + 0.01 * step * X.sum()) for step in range(1, 42)]
    assert [row["loss_weight"] for row in seen if "loss_weight" in row] == pytest.approx([0.02, 0.12, 0.22, 0.32])
    assert [watched.see(fit() + 0.41 * X.sum()) for _ in range(30)].count({}) >= 29


def test_weights_and_terms_that_follow_the_batches_are_soon_not_recorded() -> None:
    watched = Watched()
    for step in range(400):
        watched.see(fit() + (1.0 + step // 10 % 2) * X.sum())
    assert watched.asked <= 2 * MAX_TURNS + 4
    watched = Watched()
    for step in range(200):
        watched.see(sum([X.sum()] * (1 + step % 3), fit()))
    assert watched.asked <= MAX_CHANGES + 2
