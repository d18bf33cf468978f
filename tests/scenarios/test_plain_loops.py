from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from scenarios.watching import Row, Watched, batches, mse, tiny_model, true_norm
from torch import nn
from torch.optim import SGD, AdamW, lr_scheduler
from torch.utils.checkpoint import checkpoint


def test_a_raw_loop_is_recorded_as_it_is(watched: Watched) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    truth: list[Row] = []
    for batch in batches(5):
        optimizer.zero_grad()
        loss = mse(model, batch)
        loss.backward()
        truth.append(
            {
                "loss": loss.item(),
                "micro_batches": 1,
                "grad_norm": true_norm(model.parameters()),
                "learning_rate": 0.1,
            }
        )
        optimizer.step()
    watched.must_be(truth)
    assert watched.bases() == {"no clipping seen"}


@pytest.mark.parametrize("by_keyword", [False, True])
def test_a_loop_with_a_closure_is_judged_after_its_backward(watched: Watched, by_keyword: bool) -> None:
    model = tiny_model()
    optimizer = AdamW(model.parameters(), lr=0.01)
    truth: list[Row] = []
    for batch in batches(5):

        def closure(batch: tuple[torch.Tensor, torch.Tensor] = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = mse(model, batch)
            loss.backward()
            norm = true_norm(model.parameters())
            truth.append({"loss": loss.item(), "micro_batches": 1, "grad_norm": norm, "learning_rate": 0.01})
            return loss

        returned = optimizer.step(closure=closure) if by_keyword else optimizer.step(closure)
        assert returned.item() == truth[-1]["loss"]
    watched.must_be(truth)


def test_accumulated_losses_are_summed_and_counted(watched: Watched) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    truth: list[Row] = []
    for _ in range(4):
        total = 0.0
        for batch in batches(3):
            loss = mse(model, batch) / 3
            loss.backward()
            total += loss.item()
        norm = true_norm(model.parameters())
        truth.append({"loss": total, "micro_batches": 3, "grad_norm": norm, "learning_rate": 0.1})
        optimizer.step()
        optimizer.zero_grad()
    watched.must_be(truth)


@pytest.mark.parametrize("set_to_none", [False, True])
def test_zeroing_to_none_or_to_zeros_makes_no_difference(watched: Watched, set_to_none: bool) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    truth: list[Row] = []
    for batch in batches(4):
        loss = mse(model, batch)
        loss.backward()
        norm = true_norm(model.parameters())
        truth.append({"loss": loss.item(), "micro_batches": 1, "grad_norm": norm, "learning_rate": 0.1})
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
    watched.must_be(truth)


@pytest.mark.parametrize("zeroed_by", ["optimizer", "model"])
def test_a_loss_whose_gradients_were_dropped_is_not_counted(watched: Watched, zeroed_by: str) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    truth: list[Row] = []
    for batch in batches(4):
        adversarial = batch[0].clone().requires_grad_()
        mse(model, (adversarial, batch[1])).backward()
        attacked = batch[0] + 0.1 * adversarial.grad.sign()  # type: ignore[union-attr]
        (optimizer if zeroed_by == "optimizer" else model).zero_grad()
        loss = mse(model, (attacked, batch[1]))
        loss.backward()
        norm = true_norm(model.parameters())
        truth.append({"loss": loss.item(), "micro_batches": 1, "grad_norm": norm, "learning_rate": 0.1})
        optimizer.step()
        optimizer.zero_grad()
    watched.must_be(truth)


SCHEDULERS: dict[str, Callable[[SGD], lr_scheduler.LRScheduler]] = {
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 2, 0.5),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (epoch + 1)),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10),
    "warmup then cosine": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3), lr_scheduler.CosineAnnealingLR(optimizer, 5)],
        milestones=[3],
    ),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_the_learning_rate_is_that_of_the_step(watched: Watched, kind: str) -> None:
    model = tiny_model()
    optimizer = SGD([{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.02}], lr=0.1)
    scheduler = SCHEDULERS[kind](optimizer)
    used = []
    for batch in batches(8):
        mse(model, batch).backward()
        used.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"]))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    rows = watched.rows()
    assert [row["learning_rate"] for row in rows] == pytest.approx([first for first, _ in used])
    assert [row["learning_rate@group_1"] for row in rows] == pytest.approx([second for _, second in used])


def test_a_learning_rate_that_is_a_tensor_is_read_when_it_was_used(watched: Watched) -> None:
    model = tiny_model()
    optimizer = AdamW(model.parameters(), lr=torch.tensor(0.5), foreach=False)
    for number, batch in enumerate(batches(3)):
        optimizer.param_groups[0]["lr"].fill_(0.5 / (number + 1))
        mse(model, batch).backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"].fill_(9.0)
    assert [row["learning_rate"] for row in watched.rows()] == pytest.approx([0.5, 0.25, 0.5 / 3])


def test_frozen_and_gradient_less_parameters_are_left_out(watched: Watched) -> None:
    model = tiny_model()
    model[0].weight.requires_grad_(False)
    unused = nn.Parameter(torch.ones(3))
    optimizer = SGD([*model.parameters(), unused], lr=0.1)
    truth: list[Row] = []
    for batch in batches(3):
        optimizer.zero_grad()
        loss = mse(model, batch)
        loss.backward()
        norm = true_norm(model.parameters())
        truth.append({"loss": loss.item(), "micro_batches": 1, "grad_norm": norm, "learning_rate": 0.1})
        optimizer.step()
    watched.must_be(truth)


def test_a_step_without_any_gradient_has_no_norm(watched: Watched) -> None:
    optimizer = SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    optimizer.step()
    optimizer.step()
    assert watched.rows() == [{"learning_rate": 0.1}, {"learning_rate": 0.1}]


def test_sparse_gradients_count_each_row_once(watched: Watched) -> None:
    torch.manual_seed(0)
    embedding = nn.Embedding(20, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.01)
    truth: list[Row] = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = embedding(torch.tensor([1, 4, 4, 7])).square().sum()
        loss.backward()
        norm = true_norm(embedding.parameters())
        truth.append({"loss": loss.item(), "micro_batches": 1, "grad_norm": norm, "learning_rate": 0.01})
        optimizer.step()
    watched.must_be(truth)


def test_parameters_of_several_precisions_make_one_norm(watched: Watched) -> None:
    torch.manual_seed(0)
    parameters = [
        nn.Parameter(torch.randn(50, dtype=dtype)) for dtype in (torch.float32, torch.float64, torch.bfloat16)
    ]
    optimizer = SGD(parameters, lr=0.01)
    sum((parameter.float() * 300.0).square().sum() for parameter in parameters).backward()  # type: ignore[union-attr]
    norm = true_norm(parameters)
    optimizer.step()
    assert watched.rows()[0]["grad_norm"] == pytest.approx(norm, rel=1e-5)


def test_a_norm_too_large_for_half_precision_is_not_an_overflow(watched: Watched) -> None:
    parameter = nn.Parameter(torch.zeros(10_000, dtype=torch.float16))
    parameter.grad = torch.full_like(parameter, 6e4)
    SGD([parameter], lr=0.0).step()
    assert watched.rows()[0]["grad_norm"] == pytest.approx(6e6, rel=1e-3)


def test_a_loss_under_bf16_autocast_is_recorded_in_its_own_precision(watched: Watched) -> None:
    model = tiny_model()
    optimizer = AdamW(model.parameters(), lr=0.01)
    truth: list[Row] = []
    for batch in batches(4):
        with torch.autocast("cpu", torch.bfloat16):
            loss = mse(model, batch)
        loss.backward()
        norm = true_norm(model.parameters())
        truth.append({"loss": loss.item(), "micro_batches": 1, "grad_norm": norm, "learning_rate": 0.01})
        optimizer.step()
        optimizer.zero_grad()
    watched.must_be(truth)


def test_a_loss_that_the_script_changes_in_place_afterwards_keeps_its_value(watched: Watched) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    losses = []
    for batch in batches(3):
        loss = mse(model, batch)
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            loss.mul_(1000.0)
        optimizer.step()
        optimizer.zero_grad()
    assert [row["loss"] for row in watched.rows()] == pytest.approx(losses)


def test_several_losses_given_to_one_backward_are_one_micro_batch(watched: Watched) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    first, second = (mse(model, batch) for batch in batches(2))
    torch.autograd.backward([first, second])
    optimizer.step()
    row = watched.rows()[0]
    assert (row["loss"], row["micro_batches"]) == pytest.approx((first.item() + second.item(), 1))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpointed_model_runs_its_inner_backwards_uncounted(watched: Watched, use_reentrant: bool) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    truth: list[Row] = []
    for inputs, targets in batches(3):
        inputs.requires_grad_()
        hidden = checkpoint(lambda x: model[1](model[0](x)), inputs, use_reentrant=use_reentrant)
        loss = nn.functional.mse_loss(checkpoint(model[2], hidden, use_reentrant=use_reentrant), targets)
        loss.backward()
        norm = true_norm(model.parameters())
        truth.append({"loss": loss.item(), "micro_batches": 1, "grad_norm": norm, "learning_rate": 0.1})
        optimizer.step()
        optimizer.zero_grad()
    watched.must_be(truth)


def test_a_loop_whose_steps_no_hook_sees_does_not_collect_losses_for_ever(watched: Watched) -> None:
    parameter = nn.Parameter(torch.ones(3))
    for _ in range(3000):
        (parameter * parameter).sum().backward()
        parameter.grad = None
    assert len(watched.meter.capture.losses) <= 1024
    optimizer = SGD([parameter], lr=0.1)
    optimizer.zero_grad()
    loss = (parameter * parameter).sum()
    loss.backward()
    optimizer.step()
    assert watched.rows()[0]["loss"] == pytest.approx(loss.item())
    assert watched.rows()[0]["micro_batches"] == 1
