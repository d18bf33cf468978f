from __future__ import annotations

import pytest
from diagnosis.cards import made

from mlflow_stability.diagnosis.cohort.associations import associations_of
from mlflow_stability.diagnosis.cohort.features import features_of
from mlflow_stability.diagnosis.cohort.seed_groups import groups_of_seeds
from mlflow_stability.diagnosis.parameters import setting_of


@pytest.mark.parametrize(
    ("expected", "other"),
    [
        ("1e-3", "0.001"),
        ("1E-3", "0.0010"),
        ("True", "true"),
        ("None", ""),
        ("null", "None"),
        ("3", "3.0"),
        ("a ", "a"),
    ],
)
def test_two_spellings_of_a_value_are_one(expected: str, other: str) -> None:
    cards = [made("a", {"x": expected, "lr": 1, "seed": 1}), made("b", {"x": other, "lr": 1, "seed": 2})]
    assert [len(group) for group in groups_of_seeds(cards)] == [2]
    assert features_of(cards) == ([], [])


def test_a_value_of_none_counts_as_not_set_and_keeps_the_parameter_numeric() -> None:
    cards = [made(f"r{n}", {"clip": "None" if n % 3 else 0.1 * n}) for n in range(30)]
    ((clip,), text) = features_of(cards)
    assert (clip.numeric, text) == (True, [])
    assert int(clip.absent.sum()) == 21  # the twenty, and the one that is 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timestamp", "17325{n:05d}"),
        ("started_at", "2026-11-21 20:{n:02d}:07"),
        ("when", "20261121-20{n:02d}"),
        ("slurm_job_id", "9{n:03d}"),
        ("trial_number", "{n}"),
        ("master_port", "29{n:03d}"),
        ("key", "6fa459ea-ee8a-3ca4-894e-db77e160{n:04d}"),
        ("pid", "4{n:03d}"),
    ],
)
def test_numbers_and_dates_of_runs_do_not_separate_repetitions_and_are_never_named(name: str, value: str) -> None:
    cards = [
        made(f"r{n}", {name: value.format(n=n), "seed": n, "lr": 1 + n % 2}, lost=10 if n > 30 else None)
        for n in range(60)
    ]
    assert [len(group) for group in groups_of_seeds(cards)] == [30, 30]
    associations = associations_of(cards)
    assert associations.associations == ()
    assert [feature.name for feature in associations.features] == ["lr"]


def test_parameters_that_people_vary_are_part_of_the_setting() -> None:
    params = {"warmup_time": "30", "depth": "3", "data": "/data/a", "commit": "abc", "epochs": "2", "important": "1"}
    assert setting_of(made("a", params)) == params
