from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_named, run_of

from mlflow_stability.curves.curves import curves_of, run_curves, start_by_attempt
from mlflow_stability.vocabulary.text.metric_names import Meaning, metric_meanings


def test_what_was_logged_at_two_rates_is_there_once() -> None:
    history = run_named(train_loss_step=falling(50), train_loss_epoch=falling(50))
    assert [curve.name for curve in curves_of(history, "loss")] == ["train_loss_step"]


def test_parts_without_a_whole_are_added_up() -> None:
    names = ["train/box_loss", "train/cls_loss"]
    meanings = metric_meanings(names)
    history = run_of(*(metric_of(name, [2.0, 1.0, 0.5], meaning=meanings[name]) for name in names))
    whole, *parts = curves_of(history, "loss")
    assert whole.values.tolist() == [4.0, 2.0, 1.0]
    assert (whole.place, whole.part, [part.part for part in parts]) == ("", False, [True, True])


def test_the_sides_of_a_game_are_not_added_up() -> None:
    history = run_named(generator_loss=falling(20), discriminator_loss=falling(20))
    assert not any(curve.has_level for curve in curves_of(history, "loss"))
    assert len(curves_of(history, "loss")) == 2


def test_rewards_make_a_policy_of_a_loss() -> None:
    (curve,) = curves_of(run_named(loss=falling(20), mean_reward=falling(20)), "loss")
    assert not curve.has_level


def test_a_value_function_and_an_entropy_make_a_policy_of_a_loss() -> None:
    (curve,) = curves_of(run_named(loss=falling(20), explained_var_old=falling(20), entropy=falling(20)), "loss")
    assert not curve.has_level
    (curve,) = curves_of(run_named(loss=falling(20), explained_variance=falling(20)), "loss")
    assert curve.has_level  # a score of a regression


@pytest.mark.parametrize(
    "parts", ["policy_loss value_loss", "actor_loss critic_loss", "pol_loss val_loss", "selfplay_s x"]
)
def test_what_only_self_play_and_policies_log_makes_a_policy_of_a_loss(parts: str) -> None:
    curves = curves_of(run_named(train_loss=falling(20), **{part: falling(20) for part in parts.split()}), "loss")
    assert not any(curve.has_level for curve in curves)


def test_a_policy_that_imitates_has_a_level() -> None:
    (curve,) = curves_of(run_named(bc_loss=falling(20), val_loss=falling(20)), "loss")
    assert curve.has_level


def test_a_restart_begins_a_curve_and_a_rollback_goes_on_with_it() -> None:
    restarted = metric_of("loss", falling(20), steps=[*range(10), *range(10)], attempts=[0] * 10 + [1] * 10)
    set_back = metric_of("loss", falling(20), attempts=[0] * 10 + [1] * 10)
    assert start_by_attempt(run_of(restarted)) == {0: 0, 1: 1}
    assert start_by_attempt(run_of(set_back)) == {0: 0, 1: 0}
    assert [len(curve.values) for curve in curves_of(run_of(restarted), "loss")] == [10, 10]
    assert [len(curve.values) for curve in curves_of(run_of(set_back), "loss")] == [20]


def test_a_script_that_counts_steps_from_another_number_makes_no_restart_of_a_rollback() -> None:
    recorded = metric_of("loss", falling(20), steps=range(1, 21), attempts=[0] * 10 + [1] * 10)
    logged = metric_of("loss", falling(20), steps=range(20), attempts=[0] * 10 + [1] * 10)
    late = replace(metric_of("mine", [3.0, 2.0], steps=[9, 9], attempts=[0, 1]), of_the_script=True)
    assert start_by_attempt(run_of(recorded, replace(logged, of_the_script=True), late)) == {0: 0, 1: 0}
    restarted = metric_of("loss", falling(20), steps=[*range(10)] * 2, attempts=[0] * 10 + [1] * 10)
    assert start_by_attempt(run_of(restarted, late)) == {0: 0, 1: 1}
    assert start_by_attempt(run_of(late)) == {0: 0, 1: 1}


def test_infinities_that_a_database_kept_as_numbers_are_infinite_again() -> None:
    (curve,) = curves_of(run_named(loss=[1.0, 1.7976931348623157e308, -1.7976931348623157e308]), "loss")
    assert curve.values.tolist() == [1.0, np.inf, -np.inf]


def test_a_single_value_is_no_curve() -> None:
    assert curves_of(run_of(metric_of("train_loss", [1.0], meaning=Meaning("loss", is_known=True))), "loss") == ()


@pytest.mark.parametrize(
    ("name", "game"),
    [
        ("Discriminator loss", True),
        ("loss_G", True),
        ("lossD", True),
        ("d_loss", True),
        ("train/policy_gradient_loss", True),
        ("train/value_loss", True),
        ("train/entropy_loss", True),
        ("kl_loss", True),
        ("loss/gan_loss", True),
        ("loss/dis_loss", True),
        ("gp_losses", True),
        ("organ_loss", False),
        ("dist_loss", False),
        ("loss", False),
        ("cross_entropy_loss", False),
        ("loss_value", False),
        ("eval_g0_loss", False),
        ("generation_loss", False),
        ("train/decode.loss_seg", False),
        ("trl", False),
    ],
)
def test_a_game_is_known_by_its_name(name: str, game: bool) -> None:
    quantity = metric_meanings([name])[name].quantity
    for curve in curves_of(run_of(metric_of(name, falling(20))), quantity):
        assert curve.has_level is not game


def test_terms_below_zero_are_left_out_of_a_sum_of_other_terms() -> None:
    names = ["loss_recon", "loss_vae", "loss_mmd"]
    values = [[2.0, 1.0, 0.5], [3.0, 2.0, 1.5], [-5.0, -5.1, -5.2]]
    meanings = metric_meanings(names)
    history = run_of(*(metric_of(name, of, meaning=meanings[name]) for name, of in zip(names, values, strict=True)))
    assert curves_of(history, "loss")[0].values.tolist() == [5.0, 3.0, 2.0]
    below = run_of(*(metric_of(name, values[2], meaning=meanings[name]) for name in names))
    assert curves_of(below, "loss")[0].values == pytest.approx([-15.0, -15.3, -15.6])


def losses_every_ten_steps(first: float) -> int:
    """The number of points that are judged of losses around 14, after a first one."""
    losses = np.append(first, falling(40, first=14.2, last=13.6))
    return len(curves_of(run_of(metric_of("loss", losses, steps=np.arange(41) * 10)), "loss")[0].values)


def test_a_first_loss_of_one_step_before_sums_over_ten_steps_is_left_out() -> None:
    assert losses_every_ten_steps(1.42) == 40
    assert losses_every_ten_steps(14.2) == 41
    assert losses_every_ten_steps(2.9) == 41


def test_the_rewards_of_preference_optimisation_make_no_policy_of_a_loss() -> None:
    names = {"rewards/chosen": falling(20), "rewards/rejected": falling(20), "rewards/margins": falling(20)}
    curves = run_curves(run_named(loss=falling(20), **names))
    assert curves.losses[0].has_level
    assert not curves.returns


def test_a_term_that_never_changes_beside_a_loss_that_does_is_no_curve_of_its_own() -> None:
    logged = run_named(total_loss=falling(20), kl_loss=falling(20), mu_loss=np.zeros(20))
    named = {curve.name: curve for curve in curves_of(logged, "loss")}
    assert [name for name, curve in named.items() if not curve.part] == ["total_loss"]
    terms = run_named(kl_loss=falling(20), mu_loss=np.zeros(20))  # of which none is the whole loss
    assert [curve.name for curve in curves_of(terms, "loss") if not curve.part] == ["kl_loss"]


def test_a_loss_that_never_changes_is_judged_as_the_whole_one_the_only_one_or_that_of_a_training_of_its_own() -> None:
    stuck = np.full(20, 2.303)
    whole, *_ = curves_of(run_named(loss=stuck, kl_loss=falling(20)), "loss")
    (only,) = curves_of(run_named(kl_loss=stuck), "loss")
    recorded = replace(run_named(kl_loss=falling(20), mu_loss=stuck), format="recorded")
    assert not any(curve.part for curve in (whole, only, *curves_of(recorded, "loss")))
