from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recovery.guarded_training import differences, guarding, picture
from torch import nn

from mlflow_stability.recovery.skipping.gradient_limit import MOST_IN_A_ROW, GradientLimit


def after(norms: list[float], times: float | None = 100.0) -> GradientLimit:
    limit = GradientLimit(times)
    for each in norms:
        limit.step(each, skipped=False)
    return limit


def test_the_limit_is_a_multiple_of_the_usual_norm_and_far_above_the_largest() -> None:
    assert after([1.0] * 60).largest == 100.0
    assert after([1.0] * 59 + [50.0]).largest == 500.0


@pytest.mark.parametrize(
    "limit", [after([1.0] * 49), after([float("nan")] * 60), after([1.0] * 60, None)], ids=["few", "nan", "off"]
)
def test_where_nothing_is_known_or_wanted_there_is_none(limit: GradientLimit) -> None:
    assert limit.largest is None


def test_absurd_norms_that_keep_coming_are_let_through_and_are_usual_then() -> None:
    limit = after([1.0] * 60)
    taken = 0
    for _ in range(20):
        largest = limit.largest
        skipped = largest is not None and largest < 1000.0
        taken += not skipped
        limit.step(1000.0, skipped=skipped)
    assert taken == 20 - MOST_IN_A_ROW


def test_after_going_back_norms_are_learnt_anew() -> None:
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
    for each in norms.tolist():
        absurd = limit.largest is not None and each > limit.largest
        skipped += absurd
        limit.step(each, skipped=absurd)
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
