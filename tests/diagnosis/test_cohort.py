from __future__ import annotations

import re

import numpy as np
import pytest
from benchmarks.cohort import CAUSES, cohort_cards, named
from diagnosis.cards import made
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.diagnosis.cohort.association_tests import holm
from mlflow_stability.diagnosis.cohort.associations import associations_of
from mlflow_stability.diagnosis.cohort.cohort import cohort_of, sensitivity_of, survival_of
from mlflow_stability.diagnosis.cohort.seed_groups import estimate, groups_of_seeds, seed_groups_of
from mlflow_stability.vocabulary.result import RunCard


def caused_by_rate(count: int = 60, seed: int = 0, **more: str) -> list[RunCard]:
    """Runs that are lost where the learning rate is above 0.01."""
    dice = np.random.default_rng(seed)
    rates = 10 ** dice.uniform(-4, 0, count)
    return [
        made(f"r{n}", {"lr": rate, "dropout": dice.choice([0, 0.1, 0.2]), **more}, lost=100 if rate > 0.01 else None)
        for n, rate in enumerate(rates)
    ]


@pytest.mark.slow
def test_both_planted_causes_are_named_and_no_innocent_parameter() -> None:
    assert named(cohort_cards(0, planted=True)) == CAUSES


@pytest.mark.slow
def test_without_a_cause_nothing_is_named() -> None:
    assert named(cohort_cards(0, planted=False, runs=80)) == set()


def test_what_is_named_comes_with_counts_and_is_called_no_cause() -> None:
    (association,) = associations_of(caused_by_rate()).associations
    assert association.params == ("lr",)
    assert association.split == pytest.approx(0.01, rel=0.5)
    assert re.fullmatch(r"lr > [0-9.]+: \d+ of \d+ unstable; lr ≤ [0-9.]+: \d+ of \d+\.", association.statement)
    assert association.correlation is not None
    assert association.correlation > 0.5


def test_parameters_that_always_change_together_are_named_together_with_a_warning() -> None:
    cards = [
        made(card.source, {**card.params, "warmup": 1 / float(card.params["lr"])}, lost=card.divergence)
        for card in caused_by_rate()
    ]
    associations = associations_of(cards)
    assert [association.params for association in associations.associations] == [("lr", "warmup")]
    assert "change together" in associations.warnings[0]


def test_parameters_that_name_the_same_choices_are_named_together_in_whatever_order_their_values_are() -> None:
    choices = [(0.001, 64, "small"), (0.01, 512, "large"), (0.1, 128, "medium")]
    cards = [
        made(f"{n}", {"lr": lr, "width": width, "model": model, "decay": n}, lost=5 if lr > 0.05 else None)
        for n, (lr, width, model) in enumerate(choices * 12)
    ]
    associations = associations_of(cards)
    assert [association.params for association in associations.associations] == [("lr", "model", "width")]
    assert associations.warnings[0].startswith("lr and model and width change together")


def test_numbers_that_no_two_settings_share_do_not_change_together_for_having_repetitions() -> None:
    dice = np.random.default_rng(0)
    cards = [
        made(f"{n}-{seed}", {"lr": lr, "decay": decay, "seed": seed}, lost=5 if lr > 0.7 else None)
        for n, (lr, decay) in enumerate(dice.uniform(size=(40, 2)))
        for seed in range(3)
    ]
    assert [association.params for association in associations_of(cards).associations] == [("lr",)]


def test_a_parameter_that_merely_moves_with_the_cause_is_explained_away() -> None:
    dice = np.random.default_rng(1)
    cards = [
        made(
            card.source, {**card.params, "width": float(card.params["lr"]) ** dice.normal(1, 0.4)}, lost=card.divergence
        )
        for card in caused_by_rate(200)
    ]
    associations = associations_of(cards)
    assert [association.params for association in associations.associations] == [("lr",)]
    assert any(
        warning.startswith("width is associated with instability as well, but not among runs")
        for warning in associations.warnings
    )


def test_a_missing_parameter_can_be_what_matters() -> None:
    cards = [
        made(f"r{n}", {"decay": n, **({"clip": 1.0 + n} if n % 2 else {"other": 1})}, lost=None if n % 2 else 50)
        for n in range(40)
    ]
    associations = associations_of(cards)
    assert "clip" in {name for association in associations.associations for name in association.params}


@pytest.mark.parametrize(("runs", "lost"), [(4, 2), (9, 4), (40, 2), (40, 39)])
def test_too_few_runs_are_called_too_few(runs: int, lost: int) -> None:
    associations = associations_of([made(f"r{n}", {"lr": n}, lost=5 if n < lost else None) for n in range(runs)])
    assert associations.associations == ()
    assert "at least 10 runs are needed, 3 of each kind" in associations.cannot_tell[0]


def test_seeds_are_grouped_by_everything_else_and_a_lost_one_counts() -> None:
    cards = [made(f"a{s}", {"lr": 1, "seed": s}, final=2 + s / 10) for s in range(6)]
    cards += [made(f"b{s}", {"lr": 2, "seed": s}, final=1.0, lost=10 if s < 3 else None) for s in range(6)]
    first, second = seed_groups_of(groups_of_seeds(cards))
    assert (first.label, first.lost, second.label, second.lost) == ("lr=1", 0, "lr=2", 3)
    assert first.final_loss is not None
    assert first.final_loss.value == pytest.approx(2.25)
    assert first.final_loss.low is not None
    assert 2.0 <= first.final_loss.low < 2.25
    assert second.final_loss is not None
    assert second.final_loss.value == np.inf
    assert second.p_value is not None
    assert first.p_value is None


def test_no_interval_and_no_p_value_under_three_seeds() -> None:
    cards = [made(f"{lr}{s}", {"lr": lr, "seed": s}, final=lr + s) for lr in (1, 5) for s in range(2)]
    for group in seed_groups_of(groups_of_seeds(cards)):
        assert group.p_value is None
        assert group.final_loss is not None
        assert group.final_loss.low is None


def test_runs_without_parameters_are_not_taken_for_repetitions() -> None:
    assert seed_groups_of(groups_of_seeds([made(f"r{n}", {}) for n in range(5)])) == ()


@pytest.mark.slow
@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=40))
def test_an_interval_holds_its_estimate_and_is_the_same_each_time(values: list[float]) -> None:
    estimated = estimate(values)
    assert estimated is not None
    assert estimated == estimate(values)
    assert estimated.low is not None
    assert estimated.high is not None
    assert estimated.low - 1e-6 <= estimated.value <= estimated.high + 1e-6


def test_the_interquartile_mean_leaves_out_both_ends() -> None:
    interval = estimate([-100.0, 1, 2, 1000.0])
    assert interval is not None
    assert interval.value == 1.5


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_correction_never_lowers_a_p_value_and_keeps_their_order(p_values: list[float]) -> None:
    result = holm(p_values)
    assert all(after >= before for before, after in zip(p_values, result, strict=True))
    pairs = sorted(zip(p_values, result, strict=True))
    assert [after for _, after in pairs] == sorted(result)


def test_survival_falls_where_runs_are_lost_and_stopped_runs_count_until_then() -> None:
    cards = [made("a", {}, lost=100), made("b", {}, last=50), made("c", {}, lost=200), made("d", {})]
    (curve,) = survival_of(cards, {})
    assert (curve.steps, curve.lost, curve.last_step) == ((100, 200), 2, 1001)
    assert curve.shares == pytest.approx((2 / 3, 1 / 3))  # b was not watched any more at step 100
    assert all(low <= share <= high for low, share, high in zip(curve.low, curve.shares, curve.high, strict=True))


def test_log_rank_needs_three_runs_a_side() -> None:
    lost = [made(f"x{n}", {"lr": 1}, lost=10 + n) for n in range(8)]
    well = [made(f"y{n}", {"lr": 2}) for n in range(8)]
    _, *tested = survival_of([*lost, *well], {"lr 1": lost, "lr 2": well})
    assert all(item.p_value is not None and item.p_value < 0.001 for item in tested)
    _, *few = survival_of([*lost, *well[:2]], {"lr 1": lost, "lr 2": well[:2]})
    assert all(item.p_value is None for item in few)


def test_sensitivity_is_how_far_the_losses_lie_above_the_best_and_a_lost_run_counts_with_its_first() -> None:
    cards = [made(f"r{n}", {"lr": rate}, final=final) for n, (rate, final) in enumerate([(0.1, 2), (0.01, 1.0)])]
    cards.append(made("gone", {"lr": 1}, lost=10, final=80))
    sensitivity, text = sensitivity_of(cards)
    assert text == ""
    assert sensitivity is not None
    assert (sensitivity.best_rate, sensitivity.highest_stable) == (0.01, 0.1)
    assert sensitivity.losses == (1.0, 2.0, 5.0)
    assert sensitivity.sensitivity == pytest.approx((1 + 2 + 5) / 3 - 1)


def test_fewer_than_three_runs_are_no_cohort() -> None:
    assert cohort_of([made("a", {}), made("b", {})]) is None
