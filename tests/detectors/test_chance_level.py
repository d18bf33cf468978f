from __future__ import annotations

import math

import numpy as np
import pytest
from diagnosis.histories import metric_of, run_of

from mlflow_stability.detectors.loss_level import classes_at_chance, recorded_classes
from mlflow_stability.diagnosis.diagnose import diagnosis_of


@pytest.mark.parametrize("classes", [2, 10, 24, 26, 32, 65, 128, 365, 1000, 4096, 151936])
def test_the_chance_level_of_common_numbers_of_classes_is_recognized(classes: int) -> None:
    assert classes_at_chance(1.002 * math.log(classes)) == classes


def test_most_other_levels_are_not_taken_for_a_chance_level() -> None:
    levels = np.linspace(math.log(25.5), math.log(1e5), 4000)
    assert np.mean([classes_at_chance(float(level)) > 0 for level in levels]) < 0.25


@pytest.mark.parametrize("classes", range(11, 24))
def test_most_levels_between_those_of_two_numbers_of_classes_above_ten_are_those_of_neither(classes: int) -> None:
    levels = np.linspace(math.log(classes), math.log(classes + 1), 500)
    assert np.mean([classes_at_chance(float(level)) > 0 for level in levels]) < 0.35


def test_a_number_of_classes_that_a_setting_names_counts_before_any_other() -> None:
    assert classes_at_chance(math.log(77)) == 0
    assert classes_at_chance(1.008 * math.log(77), [77]) == 77
    assert classes_at_chance(1.0005 * math.log(32), [33]) == 33


def test_settings_name_classes() -> None:
    named = {"vocab_size": "77", "model/num_labels": "5", "num_classes": "many", "classes_seen": "3", "n_vocab": "1"}
    assert sorted(recorded_classes({**named, "config.NUM_CLASSES": "40"})) == [5, 40, 77]


def flat(classes: int) -> np.ndarray:
    return math.log(classes) * np.exp(np.random.default_rng(0).normal(0, 0.003, 200))


def test_a_plateau_at_the_chance_level_of_the_configured_classes_is_caused_by_guessing() -> None:
    diagnosis = diagnosis_of(run_of(metric_of("loss", flat(77)), params={"vocab_size": "77"}))
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, "chance level for 77 classes" in diagnosis.cause.statement) == ("guessing", True)


def test_the_chance_level_is_reported_where_the_loss_is_at_another_level() -> None:
    diagnosis = diagnosis_of(run_of(metric_of("loss", flat(77)), params={"vocab_size": "5000"}))
    assert diagnosis.cause is None
    assert "chance level: 8.52 for 5,000 classes, loss 4.34" in " ".join(map(str, diagnosis.cannot_tell))
