from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from zoo.catalog import CANNOT_BE_SAVED, ZOO

from mlflow_stability.demo.training_loop import Failure, Notes

SEED = 0
SLOW = {"scheduled_gpt", "plain_gpt", "half_precision_gpt", "gpt_in_half", "post_norm_transformer"}
"""The trainings of seconds. The benchmark `rescue` runs all of them to their end, and shows what each failure costs."""
QUICK = [item for item in ZOO if item.twin not in SLOW]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@cache
def notes_of(task: str, ill: str, steps: int | None = None) -> Notes:
    failure = next(entry for entry in ZOO if entry.twin == task and ill in ("", entry.name))
    notes = Notes()
    failure.train(SEED, ill=bool(ill), notes=notes, steps=steps)
    return notes


def ids(failure: Failure) -> str:
    return failure.name


@pytest.mark.slow
@pytest.mark.parametrize("failure", QUICK, ids=ids)
def test_nothing_is_wrong_before_the_onset_and_much_soon_after(failure: Failure) -> None:
    before = failure.onset - 1
    twin, ill = (notes_of(failure.twin, name, before + 20).losses for name in ("", failure.name))
    assert all(math.isfinite(loss) for loss in twin)
    assert ill[:before] == twin[:before]
    assert any(not a <= 1.2 * abs(b) for a, b in zip(ill[before : before + 20], twin[before:], strict=False))


@pytest.mark.slow
@pytest.mark.parametrize("failure", [item for item in ZOO if item.twin in SLOW and item.onset < 50], ids=ids)
def test_an_early_failure_of_a_slow_training_shows_at_its_declared_step(failure: Failure) -> None:
    steps = failure.onset + 3
    twin, ill = notes_of(failure.twin, "", steps).losses, notes_of(failure.twin, failure.name, steps).losses
    assert ill[: failure.onset - 1] == twin[: failure.onset - 1]
    assert ill != twin


@pytest.mark.slow
def test_the_policy_that_meets_heavy_tails_learns_without_the_extreme_rewards() -> None:
    regrets = notes_of("policy", "").tests
    assert max(regrets) < 0.1


def test_names_are_unique_and_twins_differ_by_their_task() -> None:
    assert len({entry.name for entry in ZOO}) == len(ZOO)
    assert len({item.twin for item in ZOO}) == len({item.task for item in ZOO})


def test_every_failure_says_what_goes_wrong_and_what_could_help() -> None:
    for failure in ZOO:
        assert failure.what.endswith(".")
        assert CANNOT_BE_SAVED.get(failure.name, ".").endswith(".")
