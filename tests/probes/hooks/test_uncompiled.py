"""Optimizer steps in compiled code are seen, and the compiled code stays what it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from scenarios.watching import batches, mse, tiny_model, true_norm, watching
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LinearLR

Batch = tuple[Tensor, Tensor]
Row = dict[str, float]


def whole_step(model: nn.Module, optimizer: AdamW) -> Callable[[Batch], Tensor]:
    @torch.compile(backend="aot_eager")
    def train(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        loss = mse(model, batch)
        loss.backward()
        optimizer.step()
        return loss

    return train


def only_optimizer(model: nn.Module, optimizer: AdamW) -> Callable[[Batch], Tensor]:
    step = torch.compile(optimizer.step, backend="aot_eager")

    def train(batch: Batch) -> Tensor:
        optimizer.zero_grad()
        loss = mse(model, batch)
        loss.backward()
        step()
        return loss

    return train


def trained(kind: Callable[[nn.Module, AdamW], Callable[[Batch], Tensor]]) -> tuple[list[Row], Tensor, int]:
    """What the script saw itself, its weights at the end, how many graphs were compiled."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = tiny_model()
    optimizer = AdamW(model.parameters(), lr=0.01)
    schedule = LinearLR(optimizer, 0.5, total_iters=5)
    train, rows = kind(model, optimizer), []
    for batch in batches(4):
        rate = optimizer.param_groups[0]["lr"]
        loss = train(batch).item()
        norm = true_norm(model.parameters())
        rows.append({"loss": loss, "micro_batches": 1.0, "grad_norm": norm, "learning_rate": rate})
        schedule.step()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return rows, nn.utils.parameters_to_vector(model.parameters()).detach(), graphs


# torch's compiler asks the loss, which is no leaf, for its gradient.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("kind", [whole_step, only_optimizer])
def test_a_compiled_step_is_recorded_and_compiled_as_it_is_without_us(
    kind: Callable[[nn.Module, AdamW], Callable[[Batch], Tensor]],
) -> None:
    _, weights, graphs = trained(kind)
    with watching() as watched:
        rows, seen_weights, seen_graphs = trained(kind)
    watched.must_be(rows)
    assert torch.equal(seen_weights, weights)
    assert seen_graphs == graphs
