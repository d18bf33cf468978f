from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scenarios.watching import Row, Watched, batches, mse, tiny_model, true_norm
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_  # imported before anything is watched, as scripts do
from torch.optim import SGD


def train(clip: Callable[[nn.Sequential], object]) -> tuple[list[float], list[float]]:
    """Train with a way of clipping; give the norms before and after it."""
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    before, after = [], []
    for batch in batches(4):
        optimizer.zero_grad()
        mse(model, batch).backward()
        before.append(true_norm(model.parameters()))
        clip(model)
        after.append(true_norm(model.parameters()))
        optimizer.step()
    assert before != after
    return before, after


def in_two_halves(model: nn.Sequential) -> None:
    clip_grad_norm_(model[0].parameters(), 0.1)
    clip_grad_norm_(model[2].parameters(), 0.2)


def twice(model: nn.Sequential) -> None:
    clip_grad_norm_(model.parameters(), 0.2)
    clip_grad_norm_(model.parameters(), 0.1)


def by_public_norm(model: nn.Sequential) -> None:
    norm = torch.nn.utils.get_total_norm(
        [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    )
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), 0.1, norm)


def from_a_generator(model: nn.Sequential) -> None:
    gradients = (parameter.grad for parameter in model.parameters() if parameter.grad is not None)
    norm = torch.nn.utils.get_total_norm(gradients)
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), 0.1, norm)


def and_change_the_norm_in_place(model: nn.Sequential) -> None:
    clip_grad_norm_(model.parameters(), 0.1).mul_(1000.0)


WHOLE = {
    "clip_grad_norm_": lambda model: clip_grad_norm_(model.parameters(), 0.1),
    "foreach=False": lambda model: clip_grad_norm_(model.parameters(), 0.1, foreach=False),
    "norm_type by keyword": lambda model: clip_grad_norm_(parameters=model.parameters(), max_norm=0.1, norm_type=2),
    "two subsets": in_two_halves,
    "twice": twice,
    "the public norm": by_public_norm,
    "a generator": from_a_generator,
    "a norm that is changed in place": and_change_the_norm_in_place,
}


@pytest.mark.parametrize("way", WHOLE)
def test_the_norm_before_clipping_is_recorded_beside_the_one_after(watched: Watched, way: str) -> None:
    before, after = train(WHOLE[way])
    rows = watched.rows()
    assert [row["grad_norm"] for row in rows] == pytest.approx(before, rel=1e-5)
    assert [row["grad_norm_clipped"] for row in rows] == pytest.approx(after, rel=1e-5)
    assert watched.bases() == {"before clipping"}


PARTIAL = {
    "infinity norm": lambda model: clip_grad_norm_(model.parameters(), 0.01, norm_type=math.inf),
    "infinity as text": lambda model: clip_grad_norm_(model.parameters(), 0.01, norm_type="inf"),  # type: ignore[arg-type]
    "one subset": lambda model: clip_grad_norm_(model[0].parameters(), 0.01),
}


@pytest.mark.parametrize("way", PARTIAL)
def test_a_norm_of_another_kind_or_of_a_part_does_not_stand_for_the_whole(watched: Watched, way: str) -> None:
    _, after = train(PARTIAL[way])
    rows = watched.rows()
    assert [row["grad_norm"] for row in rows] == pytest.approx(after, rel=1e-5)
    assert [row["grad_norm_clipped"] for row in rows] == pytest.approx(after, rel=1e-5)
    assert watched.bases() == {"after clipping"}


def manually(model: nn.Sequential) -> None:
    for parameter in model.parameters():
        parameter.grad.mul_(0.1)  # type: ignore[union-attr]


UNSEEN = {"manual": manually, "by value": lambda model: clip_grad_value_(model.parameters(), 0.01)}


@pytest.mark.parametrize("way", UNSEEN)
def test_clipping_that_takes_no_norm_is_recorded_as_the_optimizer_got_it(watched: Watched, way: str) -> None:
    _, after = train(UNSEEN[way])
    rows = watched.rows()
    assert [row["grad_norm"] for row in rows] == pytest.approx(after, rel=1e-5)
    assert not any("grad_norm_clipped" in row for row in rows)
    assert watched.bases() == {"no clipping seen"}


def test_a_clip_before_the_last_micro_batch_is_not_the_norm_of_the_step(watched: Watched) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    truth: list[Row] = []
    for first, second in zip(batches(3, seed=1), batches(3, seed=2), strict=True):
        losses = [mse(model, first), mse(model, second)]
        losses[0].backward()
        clip_grad_norm_(model.parameters(), 0.1)
        losses[1].backward()
        truth.append(
            {
                "loss": sum(loss.item() for loss in losses),
                "micro_batches": 2,
                "grad_norm": true_norm(model.parameters()),
                "learning_rate": 0.1,
            }
        )
        optimizer.step()
        optimizer.zero_grad()
    watched.must_be(truth)


def test_a_norm_that_is_not_finite_raises_for_the_script_as_without_us(watched: Watched) -> None:
    model = tiny_model()
    mse(model, next(batches(1))).backward()
    model[0].weight.grad[0, 0] = math.nan
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_(model.parameters(), 0.1, error_if_nonfinite=True)


def test_clipping_in_a_closure_is_seen_before_the_autopilot_decides(watched: Watched) -> None:
    model = tiny_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    norms = []
    for batch in batches(3):

        def closure(batch: tuple[torch.Tensor, torch.Tensor] = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = mse(model, batch)
            loss.backward()
            norms.append(float(clip_grad_norm_(model.parameters(), 0.1)))
            return loss

        optimizer.step(closure)
    rows = watched.rows()
    assert [row["grad_norm"] for row in rows] == pytest.approx(norms, rel=1e-5)
    assert [row["grad_norm_clipped"] for row in rows] == pytest.approx([0.1] * 3, rel=1e-3)
