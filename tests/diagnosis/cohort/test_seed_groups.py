"""What is concluded from repetitions with other seeds, and with what confidence."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.cards import made

from mlflow_stability.diagnosis.cohort.cohort import cohort_of
from mlflow_stability.diagnosis.cohort.seed_groups import estimate, groups_of_seeds, seed_groups_of
from mlflow_stability.vocabulary.result import RunCard


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_nineteen_of_twenty_intervals_hold_the_true_value_however_few_seeds(seeds: int) -> None:
    dice = np.random.default_rng(seeds)
    held = 0
    for _ in range(300):
        estimated = estimate(list(2 + 0.05 * dice.standard_normal(seeds)))
        assert estimated is not None
        assert estimated.low is not None
        assert estimated.high is not None
        held += estimated.low <= 2 <= estimated.high
    assert 0.90 <= held / 300 <= 0.99


def test_an_interval_of_positive_values_is_positive() -> None:
    estimated = estimate([0.01, 0.5, 3.0])
    assert estimated is not None
    assert estimated.low is not None
    assert estimated.low > 0


@pytest.mark.parametrize(("values", "low_is_zero"), [([0.0, 0.02, 0.1], True), ([-0.01, 0.02, 0.1], False)])
def test_an_interval_goes_below_zero_only_where_a_value_does(values: list[float], low_is_zero: bool) -> None:
    estimated = estimate(values)
    assert estimated is not None
    assert estimated.low is not None
    assert estimated.low <= 0
    assert (estimated.low == 0) is low_is_zero


def test_an_interval_that_reaches_a_lost_run_is_open() -> None:
    estimated = estimate([1.0, 1.1, 1.2, 1.3, np.inf])
    assert estimated is not None
    assert (estimated.value, estimated.high) == (pytest.approx(1.2), np.inf)
    assert estimated.low is not None
    assert 0 < estimated.low < 1.2


def groups(count: int, seeds: int, number: int, worse: float = 0.0) -> list[RunCard]:
    dice = np.random.default_rng(number)
    return [
        made(
            f"{group}-{seed}",
            {"lr": group, "seed": seed},
            final=2 + 0.05 * dice.standard_normal() + worse * (not group),
        )
        for group in range(count)
        for seed in range(seeds)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 6])
def test_choosing_the_best_of_equal_groups_does_not_make_the_others_look_worse(count: int) -> None:
    """The best one is chosen by its losses, and that has to be reckoned with."""
    values = [
        any(
            group.p_value is not None and group.p_value < 0.05
            for group in seed_groups_of(groups_of_seeds(groups(count, 5, number)))
        )
        for number in range(100)
    ]
    assert sum(values) <= 11


def test_three_seeds_against_three_are_never_worse_beyond_chance() -> None:
    for number in range(20):
        assert all(
            (group.p_value or 1.0) > 0.05 for group in seed_groups_of(groups_of_seeds(groups(2, 3, number, worse=1.0)))
        )


def test_a_group_worse_than_three_others_has_a_small_p_value() -> None:
    *_, worst = seed_groups_of(groups_of_seeds(groups(4, 5, 0, worse=0.5)))
    assert worst.label == "lr=0"
    assert worst.p_value is not None
    assert worst.p_value < 0.02


def test_the_final_loss_of_a_run_that_was_stopped_early_does_not_count() -> None:
    cards = [made(f"a{n}", {"lr": 1, "seed": n}, final=1 + n / 100) for n in range(3)]
    cards.append(made("killed", {"lr": 1, "seed": 3}, final=9.0, last=300))
    (group,) = seed_groups_of(groups_of_seeds(cards))
    assert group.final_loss is not None
    assert group.final_loss.value == pytest.approx(1.01)
    assert len(group.sources) == 4
    cohort = cohort_of(cards)
    assert cohort is not None
    assert any("1 run: stopped early" in text for text in cohort.cannot_tell)


def test_one_seed_that_was_run_four_times_is_one_seed() -> None:
    cards = [made(f"{lr}-{again}", {"lr": lr, "seed": 0}, final=lr) for lr in (1.0, 2.0) for again in range(4)]
    for group in seed_groups_of(groups_of_seeds(cards)):
        assert len(group.sources) == 4
        assert group.final_loss is not None
        assert (group.final_loss.low, group.p_value) == (None, None)


def test_repeated_groups_are_named_by_what_differs_between_them() -> None:
    adam = {"optimizer": "Adam", "amsgrad": "False", "betas": "(0.9, 0.999)", "base_momentum": "0.85"}
    cycle = {**adam, "scheduler": "OneCycleLR"}
    cards = [made(f"{lr}-{seed}", {**cycle, "lr": lr, "seed": seed}) for lr in (0.1, 0.3) for seed in range(2)]
    cards.append(made("alone", {"optimizer": "SGD", "nesterov": "False", "lr": 0.1, "seed": 0}))
    labels = {len(group.sources): group.label for group in seed_groups_of(groups_of_seeds(cards))}
    assert {group.label for group in seed_groups_of(groups_of_seeds(cards))} == {
        "lr=0.1",
        "lr=0.3",
        "lr=0.1, optimizer=SGD",
    }
    assert labels[1] == "lr=0.1, optimizer=SGD"


def test_a_group_is_labelled_not_set_where_the_other_group_sets_a_parameter() -> None:
    cards = [made(f"{n}", {"lr": 1, "seed": n, **({"warmup": 100} if n % 2 else {})}) for n in range(4)]
    labels = [group.label for group in seed_groups_of(groups_of_seeds(cards))]
    assert sorted(labels) == ["warmup=100", "warmup=not set"]
