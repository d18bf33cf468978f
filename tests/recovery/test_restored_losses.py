from __future__ import annotations

import math
import random

import pytest

from mlflow_stability.recovery.restored_losses import LossHistory, gives_more, midpoint


def noisy(level: float, width: float, count: int, seed: int = 0) -> list[float]:
    dice = random.Random(seed)
    return [level * (1 + width * dice.gauss(0, 1)) for _ in range(count)]


GIVEN = noisy(1.4, 0.1, 64)


def test_a_loss_that_is_high_before_any_update_does_not_come_from_the_weights() -> None:
    assert gives_more(GIVEN, [4.0, 4.1, 3.9], noisy(4.0, 0.1, 10), 2.4)


@pytest.mark.parametrize(
    ("first", "why"),
    [
        ([1.4, 3.0, 6.0], "the first loss was at its level: the updates since have raised it"),
        ([2.5, 6.0, 9.0], "most of the rise came after the first update"),
        ([5.0, 1.4, 1.4], "one bad batch"),
        ([1.5, 1.4, 1.6], "all of them are at their level"),
        ([4.0, 4.1], "too few are known"),
    ],
)
def test_losses_that_rise_after_the_first_update_come_from_the_weights(first: list[float], why: str) -> None:
    assert not gives_more(GIVEN, first, [*first, *[6.0] * 7], 2.4), why


def test_in_a_very_noisy_loss_a_few_high_ones_prove_nothing() -> None:
    wide = [0.2, 5.0, 1.0, 0.5, 9.0, 1.4, 0.3, 4.0, 2.0, 0.8] * 6
    assert not gives_more(wide, [4.0, 4.1, 3.9], [4.0] * 10, 2.4)


def test_without_what_the_state_gave_nothing_is_concluded() -> None:
    assert not gives_more([], [4.0, 4.1, 3.9], [4.0] * 10, 2.4)


def test_losses_below_zero_are_compared_by_their_differences() -> None:
    given = [-3.0 + 0.1 * value for value in noisy(0.0, 0.0, 1)] + [-3.0, -3.1, -2.9, -3.05, -2.95] * 10
    assert gives_more(given, [-1.0, -1.1, -0.9], [-1.0] * 10, -2.0)
    assert not gives_more(given, [-3.0, -1.0, 3.0], [3.0] * 10, -2.0)


def test_a_learning_rate_that_is_too_high_is_rarely_mistaken_for_changed_data() -> None:
    dice, wrong = random.Random(1), 0
    for _ in range(2000):
        given = [1.4 * 1.2 ** dice.gauss(0, 1) for _ in range(64)]
        losses = [1.4 * 1.2 ** dice.gauss(0, 1) * 1.4**step for step in range(10)]  # it diverges at once again
        wrong += gives_more(given, losses[:3], losses, 2.4)
    assert wrong == 0


def test_what_a_state_gave_are_the_losses_around_it_on_its_own_course() -> None:
    history = LossHistory()
    for step in range(1, 201):
        history.take(step, float(step))
    assert history.around(100, "", 50) == tuple(map(float, range(69, 133)))
    assert history.around(100, "", 5)[-1] == 105.0, "only the steps that have proved it"
    assert history.around(100, "critic", 50) == ()
    history.rolled_back(200)
    history.take(201, 1.0)
    assert history.around(190, "", 50)[-1] == 200.0
    assert history.around(200, "", 50) == tuple(map(float, range(169, 201))), "the state of the step itself"
    assert history.around(205, "", 50) == (1.0,)


def test_after_the_data_has_changed_states_are_measured_by_what_they_give_now() -> None:
    history = LossHistory()
    for step in range(1, 201):
        history.take(step, 1.0)
    history.rolled_back(200)
    history.changed(200, 100, (4.0, 4.1))
    assert history.around(100, "", 50) == (4.0, 4.1)
    assert history.around(50, "", 50) == ()


def test_the_number_of_remembered_losses_is_limited() -> None:
    history = LossHistory()
    for step in range(1, 50_001):
        history.take(step, 1.0)
        if step % 500 == 0:
            assert len(history.last(step, step, "")) <= 2 * 4096


def test_the_loss_of_a_step_is_its_own_or_the_next_one() -> None:
    history = LossHistory()
    assert math.isnan(history.from_step(1))
    for step in (2, 3, 5):
        history.take(step, float(step))
    history.take(4, 40.0, "critic")
    assert [history.from_step(step) for step in (1, 3, 4)] == [2.0, 3.0, 40.0]
    assert math.isnan(history.from_step(6))


@pytest.mark.parametrize(
    ("low", "high", "between"), [(1.0, 4.0, 2.0), (-4.0, -2.0, -3.0), (-1.0, 4.0, 1.5), (0.0, 3.0, 1.5)]
)
def test_the_midpoint_is_that_of_the_ratio_or_that_of_the_difference(low: float, high: float, between: float) -> None:
    assert midpoint(low, high) == midpoint(high, low) == between
