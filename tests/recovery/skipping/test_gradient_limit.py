from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recovery.guarded_training import differences, guarding, picture
from torch import nn

from mlflow_stability.recovery.skipping.broken_step import FORGET_AFTER_STEPS, MAX_SKIPPED, GradientLimit


def after(norms: list[float], times: float | None = 100.0) -> GradientLimit:
    limit = GradientLimit(times)
    for norm in norms:
        limit.step(norm, skipped=False)
    return limit


def test_the_limit_is_a_multiple_of_the_usual_norm_and_far_above_the_largest() -> None:
    assert after([1.0] * 60).largest == 100.0
    assert after([1.0] * 59 + [50.0]).largest == 500.0


@pytest.mark.parametrize("on_device", [False, True])
def test_without_an_extreme_loss_the_limit_of_the_gradient_is_ten_times_as_high(on_device: bool) -> None:
    limit = GradientLimit(100.0)
    for _ in range(60):
        limit.step(1.0, skipped=False, loss=2.0)

    def largest(*losses: float) -> float:
        result = limit.largest_for([torch.tensor(loss) if on_device else loss for loss in losses])
        assert result is not None
        return float(result)

    assert largest(2.0, 2.0) == 1000.0
    assert largest(2.0, 21.0) == 100.0
    assert largest(-21.0) == 100.0
    assert largest(float("nan")) == 1000.0
    assert largest() == 1000.0


def test_a_norm_that_the_training_survived_before_is_never_skipped() -> None:
    learnt = [10.0 * 0.98**step + 1e-4 for step in range(2000)]
    assert all(taken_of([*learnt, 5.0, *learnt[-100:], 12.0])), "one hard sample of a training that knows the others"


@pytest.mark.parametrize(
    "limit", [after([1.0] * 49), after([float("nan")] * 60), after([1.0] * 60, None)], ids=["few", "nan", "off"]
)
def test_where_nothing_is_known_or_wanted_there_is_none(limit: GradientLimit) -> None:
    assert limit.largest is None


def test_extreme_norms_that_persist_are_accepted_after_a_number_of_skips() -> None:
    limit = after([1.0] * 60)
    taken = 0
    for _ in range(20):
        largest = limit.largest
        skipped = largest is not None and largest < 1000.0
        taken += not skipped
        limit.step(1000.0, skipped=skipped, loss=1e9)
    assert taken == 20 - MAX_SKIPPED


def taken_of(norms: Iterable[float]) -> list[bool]:
    """Which of these steps are taken."""
    limit, taken = GradientLimit(100.0), []
    for norm in norms:
        largest = limit.largest
        taken.append(largest is None or norm <= largest)
        limit.step(norm, skipped=not taken[-1], loss=1e9 * norm)
    return taken


def rare(norm: float, every: int, steps: int = 6000) -> list[float]:
    return [norm if step % every == 0 else 0.01 for step in range(1, steps + 1)]


def test_a_training_whose_gradient_is_mostly_zero_is_not_limited_by_its_zeros() -> None:
    assert all(taken_of([1.0 if step % 20 == 0 else 0.0 for step in range(1, 3000)]))
    assert not taken_of([1.0, 0.0] * 60 + [1001.0])[-1]


def test_large_gradients_that_come_rarely_and_again_are_the_trainings_own() -> None:
    norms = rare(5.0, 300)
    skipped = [item for item, taken in zip(norms, taken_of(norms), strict=True) if not taken]
    assert skipped == [5.0] * MAX_SKIPPED


def test_large_gradients_that_come_more_rarely_than_that_are_always_skipped() -> None:
    norms = rare(5.0, FORGET_AFTER_STEPS + 1)
    assert taken_of(norms) == [norm < 1.0 for norm in norms]


def test_a_gradient_far_above_those_that_come_rarely_is_still_skipped() -> None:
    norms = rare(5.0, 300)
    norms[3100] = norms[3150] = 1e20
    taken = taken_of(norms)
    assert not taken[3100]
    assert not taken[3150]
    assert taken[3299]


def test_after_a_rollback_norms_are_learned_again() -> None:
    limit = after([1.0] * 60)
    limit.forget()
    assert limit.largest is None


@given(st.integers(0, 1000), st.floats(5.0, 30.0))
def test_heavy_tails_of_a_healthy_training_are_let_through(seed: int, freedom: float) -> None:
    assert skipped_of(seed, freedom) == 0


def test_of_the_heaviest_tails_at_most_one_step_in_100_000_is_skipped() -> None:
    assert sum(skipped_of(seed, 2.5) for seed in range(200)) <= 1


def skipped_of(seed: int, freedom: float) -> int:
    """How many of 600 healthy steps are skipped, whose norms have the tails of Student's t."""
    norms = np.abs(np.random.default_rng(seed).standard_t(freedom, 600)) + 0.5
    limit, skipped = GradientLimit(100.0), 0
    for value in norms.tolist():
        absurd = limit.largest is not None and value > limit.largest
        skipped += absurd
        limit.step(value, skipped=absurd)
    return skipped


def test_a_step_above_the_limit_changes_nothing() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters())
    moved = []
    with guarding(model) as meter:
        meter.largest = 1000.0
        for step in range(4):
            before = picture(model, optimizer)
            optimizer.zero_grad()
            (model(torch.ones(2, 3)).sum() * (1e6 if step == 2 else 1.0)).backward()
            optimizer.step()
            moved.append(bool(differences(before, picture(model, optimizer))))
    assert moved == [True, True, False, True]
