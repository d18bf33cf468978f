from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_stability.importers.history import clock_of
from mlflow_stability.importers.log_content import Column

NAN = math.nan


def column(rows: list[tuple[int, float, float]]) -> Column:
    made = Column()
    for row, step, epoch in rows:
        made.append(row, step, epoch, 1.0, 0.0)
    return made


def steps_and_attempts(
    rows: list[tuple[int, float, float]], totals: tuple[int, ...] = ()
) -> tuple[list[int], list[int]]:
    only = column(rows)
    steps, attempts = clock_of({"loss": only}, only, totals).of(only)
    return steps.tolist(), attempts.tolist()


def counted(first: int, last: int, every: int, *, epochs: tuple[int, ...] = (3, 4), end: int = 0) -> list[int]:
    """The batches that are printed in each epoch, `end` as an odd last one."""
    return [b for _ in epochs for b in (*range(first, last + 1, every), *([end] if end else []))]


def batches(printed: list[int], epochs: tuple[int, ...] = (3, 4)) -> list[tuple[int, float, float]]:
    size = len(printed) // len(epochs)
    return [(row, batch, epochs[row // size]) for row, batch in enumerate(printed)]


def test_a_step_of_an_epoch_with_a_known_total_is_a_step_of_the_training() -> None:
    printed = counted(200, 2983, 200)
    steps, attempts = steps_and_attempts(batches(printed), (2983,))
    assert steps[:2] == [3 * 2983 + 200, 3 * 2983 + 400]
    assert steps[len(printed) // 2] == 4 * 2983 + 200
    assert set(attempts) == {0}


@pytest.mark.parametrize(
    ("first", "last", "every", "end", "width"),
    [(0, 900, 100, 0, 1000), (100, 1000, 100, 0, 1000), (0, 900, 100, 937, 938), (1, 21, 1, 0, 21), (0, 20, 1, 0, 21)],
)
def test_the_length_of_an_epoch_follows_from_the_steps_where_the_log_does_not_say_it(
    first: int, last: int, every: int, end: int, width: int
) -> None:
    printed = counted(first, last, every, end=end)
    steps, _ = steps_and_attempts(batches(printed))
    assert steps[len(printed) // 2] == 4 * width + first


def test_the_epoch_may_change_in_a_row_after_the_last_step_of_an_epoch() -> None:
    printed = [(step, epoch + (step == 5)) for epoch in range(3) for step in (1, 2, 3, 4, 5, 5, 5)]
    printed = [(step, epoch - (step == 5 and at % 7 == 4)) for at, (step, epoch) in enumerate(printed)]
    steps, attempts = steps_and_attempts([(row, step, epoch) for row, (step, epoch) in enumerate(printed)])
    assert steps == [epoch * 5 + step for epoch in range(3) for step in (1, 2, 3, 4, 5, 5, 5)]
    assert set(attempts) == {0}


def test_a_total_of_the_whole_training_is_not_the_length_of_an_epoch() -> None:
    assert steps_and_attempts([(row, row * 10, row // 5) for row in range(10)], (5000,))[0] == [
        row * 10 for row in range(10)
    ]


def test_a_validation_that_counts_its_own_batches_is_where_the_training_was() -> None:
    loss, validation = Column(), Column()
    for epoch in range(3):
        for place in range(4):
            loss.append(epoch * 10 + place, 100 * (place + 1), epoch, 1.0, 0.0)
        for place in range(3):
            validation.append(epoch * 10 + 4 + place, 10 * place, epoch, 1.0, 0.0)
    clock = clock_of({"loss": loss, "val": validation}, loss)
    assert clock.of(validation)[0].tolist() == [400] * 3 + [800] * 3 + [1200] * 3
    assert set(clock.of(loss)[1].tolist()) == {0}


@pytest.mark.parametrize(
    ("own", "steps"),
    [
        ([100, 200] * 3, [100, 200, 300, 400, 500, 600]),
        ([100, 200, 300, 250, 500, 600], [100, 200, 300, 250, 500, 600]),
    ],
)
def test_a_validation_that_counts_within_an_epoch_is_where_a_loss_with_steps_of_the_whole_training_was(
    own: list[int], steps: list[int]
) -> None:
    loss = column([(2 * row, 100 * (row + 1), row // 2) for row in range(6)])
    validation = column([(2 * row + 1, step, row // 2) for row, step in enumerate(own)])
    assert clock_of({"loss": loss, "val": validation}, loss).of(validation)[0].tolist() == steps


def test_epochs_are_the_steps_if_a_banner_repeats_the_same_step() -> None:
    only = column([(row, 1, 10.0 * row) for row in range(1, 8)])
    clock = clock_of({"loss": only}, only)
    assert clock.of(only)[0].tolist() == [10, 20, 30, 40, 50, 60, 70]
    assert (clock.unit, clock.numbers(only)) == ("epoch", False)


def test_epochs_are_steps_where_several_processes_print_each() -> None:
    assert (
        steps_and_attempts([(row, NAN, 10 * (1 + row // 3)) for row in range(9)])[0] == [10] * 3 + [20] * 3 + [30] * 3
    )


def test_many_values_of_an_epoch_without_a_step_are_numbered() -> None:
    assert steps_and_attempts([(row, NAN, row // 50) for row in range(150)])[0] == list(range(150))


def test_steps_are_those_of_the_log() -> None:
    assert steps_and_attempts([(1, 140_049, 9), (2, 140_099, 9), (3, 140_149, 10)]) == (
        [140_049, 140_099, 140_149],
        [0, 0, 0],
    )


def test_epochs_are_steps_where_there_is_nothing_else() -> None:
    assert steps_and_attempts([(row, NAN, row) for row in range(4)])[0] == [0, 1, 2, 3]


def test_an_epoch_that_ends_as_it_began_has_begun_again() -> None:
    assert steps_and_attempts([(row, NAN, epoch) for row, epoch in enumerate([0, 1, 2, 3, 0])]) == (
        [0, 1, 2, 3, 0],
        [0, 0, 0, 0, 1],
    )


def test_epochs_that_begin_again_while_steps_go_on_are_of_several_trainings() -> None:
    rows = [(row, row, 1 + row % 8) for row in range(24)]
    assert steps_and_attempts(rows) == ([*range(8)] * 3, [0] * 8 + [1] * 8 + [2] * 8)


@pytest.mark.parametrize(
    "epochs",
    [[row % 3 for row in range(24)], [1, 2, 3, 4, 5, 6, 7, 8, 4, 5, 6, 7, 8, 9]],
    ids=["epochs of one batch of episodes", "a resume with another batch size"],
)
def test_other_epochs_that_go_back_leave_the_steps_as_they_are(epochs: list[int]) -> None:
    steps, attempts = steps_and_attempts([(row, 10 * row, epoch) for row, epoch in enumerate(epochs)])
    assert steps == [10 * row for row in range(len(epochs))]
    assert set(attempts) == {0}


def test_several_epochs_may_lie_between_two_values() -> None:
    every, length = 100, 29
    steps = [*range(every, 3000, every)]
    rows = [(row, step % length, step // length) for row, step in enumerate(steps)]
    assert steps_and_attempts(rows, (length,)) == (steps, [0] * len(rows))


def test_parts_of_epochs_are_numbered() -> None:
    assert steps_and_attempts([(row, NAN, row / 4) for row in range(8)])[0] == list(range(8))


def test_fractions_that_stay_apart_are_rounded() -> None:
    assert steps_and_attempts([(row, row * 10.5, NAN) for row in range(4)])[0] == [0, 10, 21, 32]


def test_a_step_that_never_moves_is_no_step() -> None:
    only = column([(row, 0, NAN) for row in range(6)])
    clock = clock_of({"loss": only}, only)
    assert clock.ordinal
    assert "every step is 0" in clock.reason


def test_a_row_without_a_step_has_that_of_the_row_before() -> None:
    loss, other = column([(1, 10, NAN), (3, 20, NAN), (5, 30, NAN)]), column([(2, NAN, NAN), (4, NAN, NAN)])
    assert clock_of({"loss": loss, "other": other}, loss).of(other)[0].tolist() == [10, 20]


def test_what_was_logged_before_the_first_step_of_a_new_attempt_belongs_to_it() -> None:
    loss = column([(row, (row - 1) % 10 + 1, NAN) for row in range(2, 32, 1) if (row - 1) % 10])
    validation = column([(11, 0, NAN), (21, 0, NAN)])
    attempts = clock_of({"loss": loss, "val": validation}, loss).of(validation)[1]
    assert attempts.tolist() == [1, 2]


rows = st.lists(
    st.tuples(
        st.one_of(st.just(NAN), st.integers(-5, 50), st.floats(), st.integers(0, 10**30)),
        st.one_of(st.just(NAN), st.floats(), st.integers(0, 9)),
    ),
    min_size=1,
    max_size=40,
)


@given(rows, rows)
def test_every_value_has_a_step_and_an_attempt_whatever_the_log_says(
    item: list[tuple[float, float]], two: list[tuple[float, float]]
) -> None:
    first = column([(2 * row, float(step), float(epoch)) for row, (step, epoch) in enumerate(item)])
    second = column([(2 * row + 1, float(step), float(epoch)) for row, (step, epoch) in enumerate(two)])
    clock = clock_of({"a": first, "b": second}, first)
    for value in (first, second):
        steps, attempts = clock.of(value)
        assert len(steps) == len(attempts) == len(value)
        assert (np.diff(attempts) >= 0).all()
        assert steps.dtype == attempts.dtype == np.int64
