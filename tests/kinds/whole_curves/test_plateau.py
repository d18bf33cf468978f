"""What counts as a plateau: at the start, after an early stop, after a collapse; and what does not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from diagnosis.histories import metric_of, run_named, run_of
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, RunCurves, run_curves
from mlflow_stability.kinds.progress.no_progress import FrozenRule
from mlflow_stability.kinds.progress.plateau import PlateauRule
from mlflow_stability.vocabulary.loss_level import LossLevel, NoLevel
from mlflow_stability.vocabulary.result import Finding, Severity

Floats = NDArray[np.float64]


def noisy(level: Floats, deviation: float, seed: int = 0) -> Floats:
    return level * np.exp(deviation * np.random.default_rng(seed).standard_normal(len(level)))


def findings_of(losses: Floats) -> list[Finding]:
    return PlateauRule().find(run_curves(run_named(loss=losses)))


@pytest.mark.parametrize(("classes", "points"), [(2, 10), (10, 11), (10, 500), (1000, 60)])
def test_a_loss_that_stays_at_what_guessing_costs_names_the_number_of_classes(classes: int, points: int) -> None:
    (episode,) = findings_of(noisy(np.full(points, math.log(classes)), 0.004))
    assert episode.metrics["classes"] == classes


def test_a_loss_at_the_variance_of_its_target_is_a_plateau_over_eleven_epochs() -> None:
    assert findings_of(np.array([0.100, 0.0985, 0.101, 0.102, 0.1025, 0.100, 0.101, 0.1035, 0.102, 0.1025, 0.1021]))


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.15])
def test_a_loss_that_fell_at_once_and_never_moved_again_is_a_plateau(noise: float) -> None:
    where = np.linspace(0, 1, 160)
    losses = noisy(np.where(where < 0.04, 9.0, 0.5), noise)
    (episode,) = findings_of(losses)
    assert 5 <= episode.start <= 20
    assert "flat from step" in episode.message


def test_a_loss_that_decays_to_its_label_noise_is_no_plateau() -> None:
    steps = np.arange(1000)
    for tau in (30, 40, 100, 300):
        assert not findings_of(noisy(1.5 + 3 * np.exp(-steps / tau), 0.03))


def test_a_loss_that_falls_fast_and_keeps_falling_is_no_plateau() -> None:
    assert not findings_of(noisy(9.0 * np.arange(1, 201) ** -0.7, 0.02))


def test_a_loss_that_reaches_almost_zero_at_once_is_no_plateau() -> None:
    assert not findings_of(noisy(np.where(np.arange(200) < 8, 5.0, 0.001), 0.1))


def test_a_collapse_into_noise_that_hides_any_course_is_not_judged() -> None:
    assert not findings_of(noisy(np.where(np.arange(60) < 3, 9.0, 0.9), 1.0))


@pytest.mark.parametrize("points", [30, 100, 1000])
@pytest.mark.parametrize("power", [0.2, 0.5])
def test_a_slow_fine_tuning_from_4_5_to_3_3_is_no_plateau(points: int, power: float) -> None:
    course = (1 + 20 * np.linspace(0, 1, points)) ** -power
    losses = 3.3 + 1.2 * (course - course[-1]) / (1 - course[-1])
    assert not findings_of(noisy(losses, 0.01))


def test_a_language_model_that_stops_at_a_fifth_of_the_run_is_one() -> None:
    losses = np.concatenate([np.linspace(10.8, 9.0, 30), np.full(270, 9.0)])
    assert findings_of(noisy(losses, 0.005))


def test_a_loss_of_exactly_zero_in_eight_epochs_is_one_but_not_that_of_a_policy() -> None:
    zeros = Curve("loss", "loss", "", 0, np.arange(8), np.zeros(8))
    assert FrozenRule().find(RunCurves((zeros,), (), (), ()))
    policy = Curve("loss", "loss", "", 0, np.arange(8), np.zeros(8), level=LossLevel(NoLevel.POLICY))
    assert not FrozenRule().find(RunCurves((policy,), (), (), ()))


@pytest.mark.parametrize("lifted", [(50.0, 9.8), (24.5, 6.2, 9.0, 5.5)])
def test_a_loss_that_first_updates_lifted_and_that_came_back_to_chance_is_one(lifted: tuple[float, ...]) -> None:
    losses = noisy(np.full(1500, math.log(10)), 0.015)
    losses[1 : 1 + len(lifted)] = lifted
    losses[415] = 7.9
    (episode,) = findings_of(losses)
    assert episode.metrics["classes"] == 10


@pytest.mark.parametrize("lifted", [2.3, 9.0])
def test_a_loss_that_fell_by_a_tenth_in_its_first_points_is_no_plateau(lifted: float) -> None:
    losses = np.concatenate([[2.3, lifted, lifted], np.linspace(2.3, 2.07, 9), np.full(600, 2.07)])
    assert not findings_of(noisy(losses, 0.005))


@settings(max_examples=60)
@given(points=st.integers(10, 400), last=st.floats(0.01, 0.8), seed=st.integers(0, 1000))
def test_a_loss_that_falls_steadily_to_its_end_is_never_a_plateau(points: int, last: float, seed: int) -> None:
    assert not findings_of(noisy(np.geomspace(5.0, 5.0 * last, points), 0.005, seed))


def test_a_few_optimizer_steps_do_not_show_a_plateau_and_as_many_epochs_do() -> None:
    losses = [4.83, 4.64, 4.8, 4.81, 4.79, 4.82, 4.8, 4.78, 4.81, 4.8, 4.79, 4.82, 4.8, 4.79]
    epochs, norms = metric_of("loss", losses), metric_of("grad_norm", [0.5] * len(losses))
    assert [finding.kind for finding in PlateauRule().find(run_curves(run_of(epochs)))] == ["plateau"]
    assert PlateauRule().find(run_curves(run_of(epochs, norms))) == []
    longer = metric_of("loss", losses * 3), metric_of("grad_norm", [0.5] * 3 * len(losses))
    assert [finding.kind for finding in PlateauRule().find(run_curves(run_of(*longer)))] == ["plateau"]


def test_a_short_run_that_ended_in_its_warm_up_is_no_plateau_and_a_long_one_is() -> None:
    rising, constant = np.arange(1, 61) * 1e-3, np.full(60, 0.1)
    losses = noisy(np.full(60, 4.65), 0.02)
    run = {"loss": losses, "learning_rate": rising}
    assert PlateauRule().find(run_curves(run_named(**run))) == []
    assert PlateauRule().find(run_curves(run_named(**run | {"learning_rate": constant})))
    assert PlateauRule().find(run_curves(run_named(**run | {"learning_rate": rising[::-1]})))
    long = {name: np.repeat(values, 5) for name, values in run.items()}
    assert PlateauRule().find(run_curves(run_named(**long)))


@pytest.mark.parametrize(("floor", "severity"), [(0.1, Severity.WARNING), (0.03, Severity.INFO)])
def test_a_loss_that_fell_to_less_than_a_twentieth_at_once_is_only_mentioned(floor: float, severity: Severity) -> None:
    losses = (floor + 0.85 * np.exp(-np.arange(900) / 8)) * np.exp(np.random.default_rng(0).normal(0, 0.003, 900))
    (finding,) = PlateauRule().find(run_curves(run_of(metric_of("loss", losses))))
    assert finding.severity is severity


@pytest.mark.parametrize(
    ("level", "noise", "severity"),
    [(0.5, 0.02, Severity.WARNING), (0.5, 0.08, Severity.INFO), (math.log(2), 0.08, Severity.WARNING)],
)
def test_a_loss_that_fell_at_once_to_a_noisy_level_may_have_converged(
    level: float, noise: float, severity: Severity
) -> None:
    steps = np.arange(1600)
    losses = noisy(np.where(steps < 64, 9.0, level), noise)
    (finding,) = findings_of(losses)
    assert finding.severity is severity


@pytest.mark.parametrize(("last", "plateaus"), [(0.4, 0), (0.03, 1)])
def test_a_flat_sum_of_losses_beside_a_score_that_rises_is_no_plateau(last: float, plateaus: int) -> None:
    losses, scores = noisy(np.full(100, 0.45), 0.03), np.linspace(0.0, last, 100)
    assert len(PlateauRule().find(run_curves(run_named(loss=losses, mAP_0_5=scores)))) == plateaus


def test_a_loss_that_blew_up_at_once_and_came_back_to_its_start_has_learned_nothing() -> None:
    thrown = noisy(20.0 + 2000.0 * np.exp(-np.arange(400) / 12), 0.2)
    thrown[0], thrown[120:] = 20.05, noisy(np.full(280, 19.97), 0.001)
    (episode,) = findings_of(thrown)
    assert "fell by only 0.4%" in episode.message
    thrown[300:] = 10.0
    assert not findings_of(thrown)


@pytest.mark.parametrize("seed", range(8))
def test_a_hundred_noisy_steps_of_a_language_model_are_too_few_for_a_plateau(seed: int) -> None:
    steps = np.arange(100)
    assert not findings_of(noisy(4.7 + 0.45 * np.exp(-steps / 8) - 0.0015 * steps, 0.035, seed))


def test_a_language_model_that_stopped_early_without_such_noise_is_a_plateau() -> None:
    steps = np.arange(100)
    assert findings_of(noisy(4.7 + 0.45 * np.exp(-steps / 4), 0.004))


def test_a_loss_whose_whole_fall_is_before_its_second_point_is_only_mentioned() -> None:
    epochs = noisy(np.array([0.58, *[0.54] * 19]), 0.003)
    assert [episode.severity for episode in findings_of(epochs)] == [Severity.INFO]
    at_chance = noisy(np.array([0.80, *[math.log(2)] * 19]), 0.001)
    assert [episode.severity for episode in findings_of(at_chance)] == [Severity.WARNING]
    each_step = np.array([0.49, *np.linspace(0.0886, 0.0874, 100)])
    assert [episode.severity for episode in findings_of(each_step)] == [Severity.WARNING]
    one_high_batch = noisy(np.array([0.58, *[0.54] * 19]), 0.08)
    assert all(episode.severity is Severity.WARNING for episode in findings_of(one_high_batch))


@pytest.mark.parametrize(("noise", "severity"), [(0.0, Severity.INFO), (0.01, Severity.WARNING)])
def test_a_small_fall_of_a_validation_loss_beyond_its_noise_shows_that_epochs_still_learn(
    noise: float, severity: Severity
) -> None:
    epochs = np.arange(1, 11)
    losses = 0.86 + 0.06 / epochs**1.4
    (plateau,) = PlateauRule().find(
        run_curves(run_named(loss=losses, val_loss=noisy(0.85 + 0.02 / epochs**0.7, noise, seed=3)))
    )
    assert plateau.severity is severity


def test_a_small_fall_is_only_mentioned_where_it_is_clear_and_steady() -> None:
    steps = np.arange(120)
    (steady,) = findings_of(noisy(1.01 - 0.025 * steps / 120, 0.001))
    assert steady.severity is Severity.INFO
    assert "slow but steady" in steady.message
    (flattening,) = findings_of(noisy(1.01 - 0.025 * np.minimum(1, steps / 40), 0.001))
    (hidden,) = findings_of(noisy(1.01 - 0.025 * steps / 120, 0.02))
    (from_chance,) = findings_of(noisy(math.log(2) * (1 - 0.025 * steps / 120), 0.001))
    assert {plateau.severity for plateau in (flattening, hidden, from_chance)} == {Severity.WARNING}


def test_a_fall_within_the_first_of_many_epochs_is_only_mentioned() -> None:
    losses = np.array([0.49, *np.linspace(0.354, 0.346, 100)])
    run = run_named(loss=losses)
    (of_steps,), (of_epochs,) = (
        PlateauRule().find(run_curves(replace(run, step_unit=unit))) for unit in ("step", "epoch")
    )
    assert (of_steps.severity, of_epochs.severity) == (Severity.WARNING, Severity.INFO)
