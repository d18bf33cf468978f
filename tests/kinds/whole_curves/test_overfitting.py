"""What counts as overfitting at 6, 8, 30 and 1,000 validations, and what does not."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import run_named
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mlflow_stability.curves.curves import Curve, RunCurves, run_curves
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.progress.overfitting import OverfittingRule
from mlflow_stability.vocabulary.result import Finding

Floats = NDArray[np.float64]


def curve(name: str, values: Floats, every: int = 1) -> Curve:
    return Curve(name, name, "", 0, every * np.arange(1, len(values) + 1), np.asarray(values, np.float64))


def findings_of(training: Floats, validation: Floats, every: int = 1) -> list[Finding]:
    curves = RunCurves((curve("loss", training),), (curve("val_loss", validation, every),), (), ())
    return OverfittingRule().find(curves)


def falling(points: int, last: float = 0.3) -> Floats:
    return np.geomspace(2.0, last, points)


def turning(points: int, rise: float, at: float = 0.3, noise: float = 0.01, seed: int = 0) -> Floats:
    """Falls from 1.2 to 0.8, then rises by this share up to the end."""
    where = np.linspace(0, 1, points)
    course = np.interp(where, [0, at, 1], [1.2, 0.8, 0.8 * (1 + rise)])
    return course * np.exp(noise * np.random.default_rng(seed).standard_normal(points))


@pytest.mark.parametrize(("points", "rise"), [(6, 0.5), (8, 0.4), (12, 0.25), (30, 0.15), (100, 0.12), (1000, 0.12)])
def test_a_validation_loss_that_turns_and_stays_risen_is_overfitting(points: int, rise: float) -> None:
    episodes = findings_of(falling(points), turning(points, rise))
    assert [episode.kind for episode in episodes] == ["overfitting"]
    assert "while loss fell by" in episodes[0].message


def test_ten_noisy_validations_whose_later_ones_all_lie_higher_are_overfitting() -> None:
    validation = np.array([1.4, 0.85, 0.96, 0.89, 1.1, 1.05, 1.4, 1.1, 1.25, 1.37])
    assert findings_of(falling(50, 0.7), validation, every=5)


def test_ten_noisy_validation_losses_are_no_overfitting_even_if_the_last_is_high() -> None:
    validation = np.array([0.67, 0.58, 0.72, 0.56, 0.56, 0.57, 0.64, 0.58, 0.58, 0.71])
    assert not findings_of(falling(50, 0.4), validation, every=5)


def test_one_wild_validation_does_not_hide_the_turn() -> None:
    validation = turning(20, 0.3)
    validation[3] *= 20
    assert findings_of(falling(20), validation)


def test_one_wild_last_validation_is_no_turn() -> None:
    validation = np.geomspace(1.2, 0.8, 20)
    validation[-1] *= 3
    assert not findings_of(falling(20), validation)


def test_a_training_loss_whose_noise_hides_a_fall_must_only_not_be_seen_to_rise() -> None:
    noise = np.exp(0.7 * np.random.default_rng(3).standard_normal(140))
    validation = turning(700, 0.6, at=0.6, noise=0.13)
    assert "a fall is hidden in its noise" in findings_of(noise, validation)[0].message
    assert not findings_of(noise * np.geomspace(1, 10, 140), validation)


def test_where_the_training_loss_rises_as_well_it_is_no_overfitting() -> None:
    training = np.concatenate([falling(15), np.linspace(0.3, 0.6, 15)])
    assert not findings_of(training, turning(30, 0.5, at=0.5))


def test_a_rising_validation_loss_is_no_overfitting_if_the_training_loss_is_flat() -> None:
    training = np.concatenate([falling(5), np.full(25, 0.3)])
    assert not findings_of(training, turning(30, 0.5, at=0.5))


def test_a_rise_below_four_percent_is_no_overfitting_however_clear() -> None:
    assert not findings_of(falling(100), turning(100, 0.03, noise=0.0005))


def test_fewer_than_six_validations_are_not_judged() -> None:
    assert not findings_of(falling(5), turning(5, 1.0, noise=0.0))


def test_a_training_loss_that_reached_exactly_zero_has_fallen() -> None:
    training = np.round(np.geomspace(1.0, 1e-6, 30), 4)
    assert training[-1] == 0
    assert findings_of(training, turning(30, 0.5))


def test_a_validation_loss_below_zero_is_judged_by_its_own_fall() -> None:
    where = np.linspace(0, 1, 30)
    nll = np.interp(where, [0, 0.4, 1], [2.0, -1.5, -0.8])
    assert findings_of(np.linspace(2.0, -3.0, 30), nll)
    assert not findings_of(np.linspace(2.0, -3.0, 30), np.interp(where, [0, 0.4, 1], [2.0, -1.5, -1.4]))


def test_a_training_loss_by_steps_and_a_validation_loss_by_epochs_are_read_over_the_same_run() -> None:
    training, validation = curve("loss", falling(500), every=50), curve("val_loss", turning(20, 0.4))
    assert OverfittingRule().find(RunCurves((training,), (validation,), (), ()))


def test_it_is_dated_after_the_best_validation() -> None:
    episode = findings_of(falling(30), turning(30, 0.5, at=0.5, noise=0.001))[0]
    assert 14 <= episode.metrics["best_step"] <= 17
    assert episode.start == episode.metrics["best_step"] + 1


def test_the_diagnosis_of_a_run_of_28_epochs_names_it() -> None:
    history = run_named(loss=falling(28), val_loss=turning(28, 0.13, at=0.45, noise=0.015))
    assert "overfitting" in {finding.kind for finding in diagnosis_of(history).findings}
    assert run_curves(history).validations


@settings(max_examples=60)
@given(points=st.integers(6, 300), seed=st.integers(0, 10_000), scale=st.floats(1e-6, 1e6))
def test_a_validation_loss_that_falls_all_along_is_never_overfitting(points: int, seed: int, scale: float) -> None:
    steps = np.random.default_rng(seed).exponential(0.05, points)
    assert not findings_of(falling(points), scale * np.exp(-np.cumsum(steps)))


@settings(max_examples=60)
@given(values=st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=6, max_size=40))
def test_no_validation_losses_make_it_fail(values: list[float]) -> None:
    for training in (falling(40), np.array(values)):
        for episode in findings_of(training, np.array(values)):
            assert episode.start <= episode.end
