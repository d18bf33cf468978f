"""How often an innocent parameter is named, and a guilty one is."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from diagnosis.cards import made

from mlflow_stability.diagnosis.cohort.association_tests import p_value_of
from mlflow_stability.diagnosis.cohort.associations import associations_of
from mlflow_stability.diagnosis.cohort.features import MOST_LIMITS, Exposure, Feature, best_split, exposure_of
from mlflow_stability.vocabulary.result import RunCard

COHORTS = 25


def drawn(dice: np.random.Generator) -> dict[str, object]:
    return {
        "lr": 10 ** dice.uniform(-4, -1),
        "batch_size": int(dice.choice([16, 32, 64, 128])),
        "optimizer": dice.choice(["adamw", "lion", "sgd"]),
        "warmup": int(dice.choice([0, 200, 1000])),
    }


def repeated_settings(dice: np.random.Generator) -> list[RunCard]:
    """Twelve settings with five seeds; whether a setting is lost nothing says that is known of it."""
    cards = []
    for number in range(12):
        params, share = drawn(dice), 0.95 if dice.random() < 0.3 else 0.05
        for seed in range(5):
            lost = int(dice.integers(50, 950)) if dice.random() < share else None
            cards.append(made(f"{number}-{seed}", {**params, "seed": seed}, lost=lost))
    return cards


def of_unequal_length(dice: np.random.Generator) -> list[RunCard]:
    """A fixed number of examples: small batches make long runs, and each step is as dangerous as any."""
    cards = []
    for number in range(150):
        params, lost = drawn(dice), int(dice.exponential(4000))
        last = 64_000 // int(str(params["batch_size"]))
        cards.append(made(str(number), params, lost=lost if lost < last else None, last=last))
    return cards


def of_rare_values(dice: np.random.Generator) -> list[RunCard]:
    ill = dice.choice(200, 4, replace=False)
    share = [0.95, 0.025, 0.025]
    return [
        made(str(n), {name: int(dice.choice(3, p=share)) for name in "abcdef"}, lost=9 if n in ill else None)
        for n in range(200)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("make", [repeated_settings, of_unequal_length, of_rare_values])
def test_a_parameter_without_effect_is_rarely_named(make: Callable[[np.random.Generator], list[RunCard]]) -> None:
    cohorts = [associations_of(make(np.random.default_rng(number))) for number in range(COHORTS)]
    assert sum(bool(cohort.associations) for cohort in cohorts) <= 2


def grid(rates: int, seeds: int, bad: float) -> list[RunCard]:
    """A full grid of learning rate and optimizer in which high rates are lost."""
    settings = itertools.product(range(1, rates + 1), ("adamw", "sgd"), range(seeds))
    return [
        made(f"{rate}-{name}-{seed}", {"lr": rate, "opt": name, "seed": seed}, lost=9 if rate > bad else None)
        for rate, name, seed in settings
    ]


def test_an_effect_in_every_setting_is_named_even_if_settings_were_repeated() -> None:
    assert [association.params for association in associations_of(grid(5, 3, bad=3)).associations] == [("lr",)]


def test_with_too_few_settings_counts_are_reported_instead_of_an_association() -> None:
    associations = associations_of(grid(3, 10, bad=2))
    assert associations.associations == ()
    (result,) = associations.cannot_tell
    assert "Association of lr with instability: lr > " in result
    assert "only 6 different settings, too few" in result


def test_a_second_effect_seen_in_only_two_settings_is_reported_but_not_named() -> None:
    """Of ten rates the three highest are lost, and two more without a warm-up."""
    cards = [
        made(
            f"{lr}-{warmup}-{seed}", {"lr": lr, "warmup": warmup, "seed": seed}, lost=9 if lr > 5 + 2 * warmup else None
        )
        for lr, warmup, seed in itertools.product(range(1, 11), (0, 1), range(4))
    ]
    associations = associations_of(cards)
    assert [association.params for association in associations.associations] == [("lr",)]
    assert any("Association of warmup with instability beside lr" in text for text in associations.cannot_tell)


def test_repetitions_are_evidence_where_only_one_parameter_was_changed() -> None:
    cards = [card for card in grid(4, 5, bad=3) if card.params["opt"] == "sgd"]
    assert [association.params for association in associations_of(cards).associations] == [("lr",)]


def test_a_run_that_was_stopped_early_does_not_count_as_stable() -> None:
    """All runs of the high rate are lost at step 500, but for those that were stopped before."""
    cards = [made(f"low{n}", {"lr": 1, "x": n / 7}) for n in range(12)]
    cards += [made(f"high{n}", {"lr": 2, "x": n / 7}, lost=500) for n in range(12)]
    cards += [made(f"short{n}", {"lr": 2, "x": n / 7}, last=20) for n in range(24)]
    feature = Feature("lr", np.array([float(card.params["lr"]) for card in cards]) - 1, ("1", "2"))
    p_value = p_value_of(feature, exposure_of(cards))
    assert p_value is not None
    assert p_value < 0.001
    assert [association.params for association in associations_of(cards).associations] == [("lr",)]


def test_the_statement_gives_the_median_start_where_almost_all_runs_are_lost() -> None:
    dice = np.random.default_rng(0)
    cards = [
        made(f"{n}", {"lr": n % 2, "x": dice.uniform()}, lost=int(dice.integers(50, 100)) * (1 if n % 2 else 8))
        for n in range(60)
    ]
    cards += [made(f"well{n}", {"lr": n % 2, "x": dice.uniform()}, last=700) for n in range(6)]
    (association,) = associations_of(cards).associations
    assert association.params == ("lr",)
    assert "median start at step" in association.statement


def test_without_information_from_time_the_p_value_is_that_of_the_exact_test() -> None:
    """Five of twelve, all on one side of six: Fisher's test gives 2 * 6 / 792."""
    ill = np.array([True] * 5 + [False] * 7)
    feature = Feature("x", np.array([1.0] * 6 + [0.0] * 6), ("a", "b"))
    p_value = p_value_of(feature, Exposure(np.ones(12), ill, np.arange(12)), tests=50)
    assert p_value == pytest.approx(2 * 6 / 792, rel=0.2)


def test_the_best_split_of_very_many_values_is_found_with_a_few_hundred_limits() -> None:
    values = np.random.default_rng(0).uniform(1, 2, 5000)
    split = best_split(Feature("x", values), values > 1.7)
    assert split is not None
    assert split.limit == pytest.approx(1.7, abs=2 / MOST_LIMITS)
