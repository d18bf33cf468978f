from __future__ import annotations

import numpy as np
import pytest
from diagnosis.cards import history_of_loss
from diagnosis.histories import falling, metric_of, run_of
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_stability.diagnosis.two_runs import first_difference_of


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(20, 1500), st.sampled_from([0.005, 0.02, 0.1, 0.3]))
def test_two_runs_that_differ_only_by_noise_never_part(seed: int, count: int, noise: float) -> None:
    first, other = (falling(count, seed=2 * seed + number, noise=noise) for number in (0, 1))
    assert first_difference_of(history_of_loss(first), history_of_loss(other, "b")).parts_at is None


@pytest.mark.parametrize("jump", [1.1, 1.5, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_lasting_difference_is_dated_to_a_few_steps(jump: float, seed: int) -> None:
    first, other = falling(2000, seed=2 * seed, noise=0.01), falling(2000, seed=2 * seed + 1, noise=0.01)
    other[800:] *= jump
    difference = first_difference_of(history_of_loss(first), history_of_loss(other, "b"))
    assert difference.parts_at == pytest.approx(800, abs=5)
    assert difference.gap == pytest.approx(jump - 1, rel=0.1)
    assert difference.meets_at is None


def test_runs_that_are_equal_to_the_last_digit_say_so_up_to_the_step_where_they_are_not() -> None:
    losses = falling(1000)
    other = losses.copy()
    other[600:] = falling(1000, seed=1)[600:]
    difference = first_difference_of(history_of_loss(losses, seed=1), history_of_loss(other, "b", seed=1))
    assert (difference.identical_until, difference.differs_at, difference.parts_at) == (599, 600, None)
    assert difference.same_seed
    assert "With the same seed" in difference.sentence
    assert "always within its noise" in difference.sentence


def test_a_spike_of_one_step_is_where_they_part_and_the_next_is_where_they_meet() -> None:
    losses = falling(1000)
    other = losses.copy()
    other[500] *= 5
    difference = first_difference_of(history_of_loss(losses), history_of_loss(other, "b"))
    assert (difference.parts_at, difference.meets_at) == (500, 501)
    assert difference.gap == pytest.approx(4.0)


def test_they_are_together_again_where_they_are_and_not_where_they_are_less_apart() -> None:
    first, other = falling(1000, seed=1, noise=0.3), falling(1000, seed=2, noise=0.3)
    other[400:] *= 1 + 20 * np.exp(-np.arange(600) / 60)
    difference = first_difference_of(history_of_loss(first), history_of_loss(other, "b"))
    assert difference.parts_at == pytest.approx(400, abs=3)
    assert difference.meets_at is not None
    assert difference.meets_at < 800
    assert np.log(other / first)[difference.meets_at : difference.meets_at + 24].mean() < 0.3


def test_the_sentence_begins_with_the_unchanged_name_of_the_metric() -> None:
    losses = falling(100)
    assert first_difference_of(history_of_loss(losses), history_of_loss(losses, "b")).sentence.startswith("train_loss ")
    other = first_difference_of(history_of_loss(losses), history_of_loss(2 * losses, "b"))
    assert other.sentence.startswith("train_loss differs from step")


def test_two_metrics_of_different_names_differ() -> None:
    losses = falling(100)
    other = first_difference_of(history_of_loss(losses), run_of(metric_of("loss", 2 * losses)))
    assert other.sentence.startswith("train_loss and loss differ from step 0.")
    same = first_difference_of(history_of_loss(losses), run_of(metric_of("loss", losses)))
    assert same.sentence.startswith("train_loss and loss are identical at all 100 common steps.")


@pytest.mark.parametrize(
    ("factor", "expected"), [(5.0, "5.0 times"), (120_280.0, "120,280 times"), (2e9, "2.0e+09 times")]
)
def test_the_ratio_of_the_two_losses_can_be_read(factor: float, expected: str) -> None:
    losses = falling(100)
    assert (
        f"{expected} a." in first_difference_of(history_of_loss(losses), history_of_loss(factor * losses, "b")).sentence
    )


def test_one_that_becomes_nan_parts_there() -> None:
    first, other = falling(1000), falling(1000)
    other[700:] = np.nan
    assert first_difference_of(history_of_loss(first), history_of_loss(other, "b")).parts_at == 700


def test_the_same_run_twice_never_parts() -> None:
    difference = first_difference_of(history_of_loss(falling(100)), history_of_loss(falling(100), "b"))
    assert difference.differs_at is difference.parts_at is None
    assert "identical at all 100" in difference.sentence


def test_the_last_steps_of_runs_of_unequal_length_are_reported() -> None:
    losses = falling(400)
    difference = first_difference_of(history_of_loss(losses[:130], "short"), history_of_loss(losses, "long"))
    assert "short ends at step 129, long at step 399." in difference.sentence
    assert "ends" not in first_difference_of(history_of_loss(losses[:-1]), history_of_loss(losses, "b")).sentence
    alike = first_difference_of(history_of_loss(losses[:130]), history_of_loss(losses))
    assert "the first ends at step 129, the second at step 399." in alike.sentence


def test_runs_without_a_common_step_or_a_loss_say_so() -> None:
    late = run_of(metric_of("train_loss", falling(50), steps=np.arange(1000, 1050)))
    assert "no step in common" in first_difference_of(history_of_loss(falling(50)), late).sentence
    assert (
        "No loss curve"
        in first_difference_of(history_of_loss(falling(50)), run_of(metric_of("speed", [1, 2, 3]))).sentence
    )


@pytest.mark.parametrize(
    ("alike", "expected"),
    [
        (0, "differs from step 1"),
        (1, "is identical at step 1 and differs from step 2"),
        (2, "is identical at steps 1 and 2 and differs from step 3"),
        (3, "is identical up to step 3 and differs from step 4"),
    ],
)
def test_an_identical_step_is_never_reported_as_the_first_difference(alike: int, expected: str) -> None:
    first, other = (run_of(metric_of("loss", falling(100, seed=seed), steps=np.arange(1, 101))) for seed in (0, 1))
    other.metrics[0].series.values[:alike] = first.metrics[0].series.values[:alike]
    difference = first_difference_of(first, other)
    assert expected in difference.sentence
    assert difference.differs_at == alike + 1


def test_too_few_common_steps_are_called_too_few() -> None:
    difference = first_difference_of(history_of_loss([3.0, 2.0, 1.0]), history_of_loss([9.0, 8.0, 7.0], "b"))
    assert difference.parts_at is None
    assert "too few" in difference.sentence
