from __future__ import annotations

from typing import Any

import pytest
import torch
from scenarios.watching import Row, Watched, batches, mse, tiny_model, true_norm
from torch import Tensor, nn
from torch.optim import SGD, AdamW


class Interrupts(torch.autograd.Function):
    """A layer whose gradient is interrupted by Ctrl-C."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise KeyboardInterrupt


class InterruptedStep(AdamW):
    """An optimizer that Ctrl-C meets in the middle of its step."""

    interrupted = False

    def step(self, closure: Any = None) -> Any:
        if self.interrupted:
            raise KeyboardInterrupt
        return super().step(closure)


def cell(model: nn.Sequential, optimizer: torch.optim.Optimizer, count: int, zero_first: bool, lr: float) -> list[Row]:
    """A notebook cell that trains, run again and again."""
    truth: list[Row] = []
    for batch in batches(count):
        if zero_first:
            optimizer.zero_grad()
        loss = mse(model, batch)
        loss.backward()
        norm = true_norm(model.parameters())
        truth.append({"loss": loss.item(), "micro_batches": 1, "grad_norm": norm, "learning_rate": lr})
        optimizer.step()
        if not zero_first:
            optimizer.zero_grad()
    return truth


@pytest.mark.parametrize("zero_first", [True, False])
def test_a_backward_that_was_interrupted_leaves_no_loss_behind(watched: Watched, zero_first: bool) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    truth = cell(model, optimizer, 3, zero_first, 0.1)
    optimizer.zero_grad()
    with pytest.raises(KeyboardInterrupt):
        Interrupts.apply(mse(model, next(batches(1)))).backward()
    optimizer.zero_grad()
    truth += cell(model, optimizer, 3, zero_first, 0.1)
    watched.must_be(truth)


def test_a_cell_interrupted_between_backward_and_step_counts_for_nothing_once_it_is_run_again(
    watched: Watched,
) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    truth = cell(model, optimizer, 2, True, 0.1)
    mse(model, next(batches(1))).backward()
    truth += cell(model, optimizer, 2, True, 0.1)
    watched.must_be(truth)


def test_a_step_that_was_interrupted_is_recorded_and_the_next_one_is_right(watched: Watched) -> None:
    model = tiny_model()
    optimizer = InterruptedStep(model.parameters(), lr=0.01)
    truth = cell(model, optimizer, 3, True, 0.01)
    optimizer.interrupted = True
    optimizer.zero_grad()
    loss = mse(model, next(batches(1)))
    loss.backward()
    norm = true_norm(model.parameters())
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    truth.append({"loss": loss.item(), "micro_batches": 1, "grad_norm": norm, "learning_rate": 0.01})
    optimizer.interrupted = False
    truth += cell(model, optimizer, 3, True, 0.01)
    watched.must_be(truth)


@pytest.mark.parametrize("where", ["forward", "backward", "after backward"])
def test_a_closure_that_raised_leaves_the_next_steps_right(watched: Watched, where: str) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    batch = next(batches(1))
    broken = False
    truth: list[Row] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        if broken and where == "forward":
            raise ValueError("a broken batch")
        loss = mse(model, batch)
        if broken and where == "backward":
            loss = Interrupts.apply(loss)
        loss.backward()
        if broken and where == "after backward":
            raise ValueError("a broken metric")
        norm = true_norm(model.parameters())
        truth.append({"loss": loss.item(), "micro_batches": 1, "grad_norm": norm, "learning_rate": 0.1})
        return loss

    for number in range(6):
        broken = number == 3
        if broken:
            with pytest.raises((ValueError, KeyboardInterrupt)):
                optimizer.step(closure)
        else:
            optimizer.step(closure)
    assert len(truth) == 5
    watched.must_be(truth)


def test_an_exception_in_one_cell_does_not_make_later_steps_look_nested(watched: Watched) -> None:
    model = tiny_model()
    optimizer = InterruptedStep(model.parameters(), lr=0.01)
    optimizer.interrupted = True
    for _ in range(3):
        mse(model, next(batches(1))).backward()
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
        optimizer.zero_grad()
    optimizer.interrupted = False
    cell(model, optimizer, 4, True, 0.01)
    assert len(watched.rows()) == 7
