from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_named, run_of
from findings import at_step
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.curves.main_curves import judged_curves, with_main_curves
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.result import AskedCurves, Severity
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text.metric_names import metric_meanings

ASKED = AskedCurves("", "")


def chosen(history: RunHistory, asked: AskedCurves = ASKED) -> tuple[str, str]:
    """The main loss and the main validation loss."""
    history = with_main_curves(history, asked)
    judged = judged_curves(history, run_curves(history))
    return (judged.losses or ("",))[0], (judged.validations or ("",))[0]


def of_lengths(**lengths: int) -> RunHistory:
    meanings = metric_meanings(lengths)
    made = {name: falling(count, seed=place) for place, (name, count) in enumerate(lengths.items())}
    metrics = (metric_of(name, values, meaning=meanings[name]) for name, values in made.items())
    return run_of(*metrics)


def test_a_few_values_give_way_to_the_curve_that_is_called_the_same_but_for_capitals() -> None:
    assert chosen(of_lengths(Loss=2, loss=100))[0] == "loss"
    assert chosen(of_lengths(Loss=2, loss=12))[0] == "Loss"
    assert chosen(of_lengths(Loss=30, loss=400))[0] == "Loss"


def test_a_loss_that_was_logged_now_and_then_gives_way_to_its_mean() -> None:
    assert chosen(of_lengths(loss=3, mean_loss=100))[0] == "mean_loss"
    assert chosen(of_lengths(loss=30, mean_loss=100))[0] == "loss"


@pytest.mark.parametrize(
    ("names", "loss", "validation"),
    [
        ("loss_seg/train loss_seg/val acc/train acc/val miou/val", "loss_seg/train", "loss_seg/val"),
        ("train/loss_step train/loss_epoch val/loss lr-AdamW", "train/loss_epoch", "val/loss"),
        ("loss loss_cls loss_bbox lr memory eta", "loss", ""),
        ("trl tel norm lr", "trl", "tel"),
        ("lm loss grad norm learning rate|lm loss|validation lm loss", "lm loss", "validation lm loss"),
        ("loss accuracy val_loss val_accuracy output1_loss val_output1_loss", "loss", "val_loss"),
        ("train_loss eval_loss test_loss", "train_loss", "eval_loss"),
        ("train_nll valid_nll ppl", "train_nll", "valid_nll"),
        ("total_loss kl_loss recon_loss val_recon_loss", "total_loss", "val_recon_loss"),
        ("Train/Loss Val/Loss Test/Loss", "Train/Loss", "Val/Loss"),
        ("loss_train loss_val loss_test accuracy_val", "loss_train", "loss_val"),
        ("accuracy f1 reward lr", "", ""),
    ],
)
def test_the_loss_that_a_reader_would_look_at_is_judged(names: str, loss: str, validation: str) -> None:
    logged = names.split("|")[1:] if "|" in names else names.split()
    assert chosen(run_named(**{name: falling(40, seed=place) for place, name in enumerate(logged)})) == (
        loss,
        validation,
    )


def test_means_of_epochs_are_judged_where_they_are_as_many_as_single_steps() -> None:
    assert chosen(of_lengths(train_loss_step=160, train_loss_epoch=1000)) == ("train_loss_epoch", "")
    assert chosen(of_lengths(train_loss_step=5000, train_loss_epoch=300)) == ("train_loss_step", "")
    history = with_main_curves(of_lengths(train_loss_step=160, train_loss_epoch=1000))
    assert history.choice == ("train_loss_epoch is the mean of each epoch (1,000 points, train_loss_step 160)",)
    assert [curve.name for curve in run_curves(history).losses] == ["train_loss_epoch"]  # and no other beside it


def test_means_of_epochs_are_judged_where_single_steps_are_mostly_noise() -> None:
    def logged(noise: float, epochs: int) -> RunHistory:
        meanings = metric_meanings(["train_loss_step", "train_loss_epoch"])
        made = {"train_loss_step": falling(2000, noise=noise), "train_loss_epoch": falling(epochs)}
        return run_of(*(metric_of(name, values, meaning=meanings[name]) for name, values in made.items()))

    assert chosen(logged(0.4, 60)) == ("train_loss_epoch", "")
    assert chosen(logged(0.4, 10)) == ("train_loss_step", "")
    assert chosen(logged(0.05, 60)) == ("train_loss_step", "")


def test_a_test_with_enough_points_is_judged_where_the_validation_has_too_few() -> None:
    assert chosen(of_lengths(train_loss=100, val_loss=3, test_loss=20)) == ("train_loss", "test_loss")
    assert chosen(of_lengths(train_loss=100, val_loss=10, test_loss=20)) == ("train_loss", "val_loss")


def test_a_loss_that_is_the_sum_of_the_others_is_their_total() -> None:
    first, two = falling(40), falling(40, seed=1)
    history = run_named(energy_loss=first, force_loss=two, potential_loss=first + two)
    assert chosen(history) == ("potential_loss", "")
    assert chosen(run_named(energy_loss=first, force_loss=two)) == ("sum of energy_loss, force_loss", "")


def test_the_error_of_a_critic_comes_before_the_objective_of_its_actor() -> None:
    logged = {"train/actor_loss": falling(40), "train/alpha_loss": falling(40), "train/critic_loss": falling(40)}
    assert chosen(run_named(**logged, reward=falling(40)))[0] == "train/critic_loss"


def test_the_parts_of_a_sum_are_no_other_curves() -> None:
    history = run_named(a_loss=falling(40), b_loss=falling(40), accuracy=falling(40), epoch=range(40))
    judged = diagnosis_of(history).judged
    assert (judged.losses, judged.others) == (("sum of a_loss, b_loss",), 1)


def test_the_layers_of_a_recorded_run_are_no_other_curves() -> None:
    names = {"loss": falling(40), "grad_norm": falling(40), "grad_norm@encoder": falling(40)}
    recorded = replace(run_named(**names), format="recorded")
    assert [metric.meaning.place for metric in recorded.metrics] == ["", "", "encoder"]
    assert diagnosis_of(recorded).judged.others == 1


def test_what_was_asked_for_is_judged() -> None:
    history = run_named(loss=falling(40), val_loss=falling(40), acc=np.linspace(0.1, 0.9, 40), other=falling(40))
    assert chosen(history, AskedCurves("other", "acc")) == ("other", "acc")
    assert chosen(history, AskedCurves("other")) == ("other", "val_loss")
    judged = diagnosis_of(with_main_curves(history, AskedCurves("other"))).judged
    assert judged.reasons == ("other was chosen with --loss",)


def test_what_was_the_loss_before_is_no_duplicate_of_what_was_asked_for() -> None:
    history = with_main_curves(of_lengths(train_loss_step=160, train_loss_epoch=20), AskedCurves("train_loss_epoch"))
    assert [curve.name for curve in run_curves(history).losses] == ["train_loss_epoch"]
    history = with_main_curves(of_lengths(train_loss_step=160, train_loss_epoch=20, x=30), AskedCurves("x"))
    assert [curve.name for curve in run_curves(history).losses if not curve.part] == ["x"]


def test_a_name_may_be_asked_for_with_other_capitals_and_separators() -> None:
    assert (
        chosen(run_named(**{"Train/Loss": falling(9), "x": falling(9)}), AskedCurves("train loss"))[0] == "Train/Loss"
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("trian_loss", "Did you mean 'train_loss'"),
        ("loss", "Did you mean 'val_loss' or 'train_loss'?"),
        ("zzz", "Its metrics: lone, lr, train_loss, val_loss."),
        ("lone", "has a single value; a curve needs at least two"),
    ],
)
def test_a_name_that_cannot_be_judged_is_an_error_that_helps(name: str, expected: str) -> None:
    history = of_lengths(train_loss=9, val_loss=9, lr=9, lone=1)
    with pytest.raises(SettingsError, match=r"a\.jsonl") as raised:
        with_main_curves(history, AskedCurves(name))
    assert expected in str(raised.value)


def test_what_was_judged_while_it_trained_is_judged_again_by_curves_that_were_asked_for() -> None:
    event = at_step(3, "loss_spike", Severity.WARNING, "It jumped.")
    history = run_of(metric_of("loss", falling(40)), metric_of("other", falling(40)), events=[event])
    assert with_main_curves(history).events is not None
    again = with_main_curves(history, AskedCurves("other"))
    assert again.events is None
    assert "Judged again, by other curves than during training." in again.notes


NAMES = ["loss", "train_loss", "train/loss_step", "train/loss_epoch", "val_loss", "eval_loss", "test_loss", "kl_loss"]
NAMES += ["recon_loss", "total_loss", "val_kl_loss", "mse", "val_mse", "ppl", "val_ppl", "nll", "accuracy", "reward"]
NAMES += ["D_loss", "G_loss", "loss_scale", "best_val_loss", "lr", "grad_norm"]
BOOKS = ["epoch", "global_step", "pid", "timestamp", "train_runtime", "percentage", "eta_seconds", "total_flos"]
lengths = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 30), max_size=9)


@given(lengths, st.randoms())
def test_the_order_of_the_columns_never_changes_the_choice(logged: dict[str, int], random: Random) -> None:
    shuffled = dict(random.sample(list(logged.items()), len(logged)))
    assert chosen(of_lengths(**logged)) == chosen(of_lengths(**shuffled))


@given(lengths, st.lists(st.sampled_from(BOOKS), max_size=3), st.lists(st.sampled_from(BOOKS), max_size=3))
def test_how_clocks_and_counters_are_called_never_changes_the_choice(
    logged: dict[str, int], some: list[str], others: list[str]
) -> None:
    there = of_lengths(**logged, **dict.fromkeys(some, 30))
    assert chosen(there) == chosen(of_lengths(**logged, **dict.fromkeys(others, 30)))


@pytest.mark.parametrize(
    "values",
    [
        [0.0] * 40,
        [np.nan] * 40,
        [1.0] * 40,
        [0.0, *falling(39)],
        [*falling(39), 0.0],
        [np.inf] * 40,
        [1.0, 2.0],
        [-1.0, 0.0],
    ],
)
def test_a_curve_of_any_kind_is_judged_without_an_error(values: list[float]) -> None:
    history = with_main_curves(run_named(loss=values, val_loss=values, kl_loss=values))
    assert diagnosis_of(history).judged.losses == ("loss",)
    history = with_main_curves(run_named(a_loss=values, b_loss=values, c_loss=values))
    assert len(diagnosis_of(history).judged.losses) == 1
