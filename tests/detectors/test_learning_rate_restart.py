from __future__ import annotations

from collections.abc import Iterable

from mlflow_stability.detectors.learning_rate_restart import RateRestart

CYCLE = (2e-3, 1e-3, 1e-7)
"""A short cosine, as between two warm restarts."""


def seen(rates: Iterable[float], restart: RateRestart | None = None, first: int = 0) -> RateRestart:
    restart = restart or RateRestart()
    for step, rate in enumerate(rates, first):
        restart.see(rate, step)
    return restart


def test_a_rate_that_comes_back_to_where_it_was_excuses_a_rise() -> None:
    assert seen([*CYCLE, 2e-3]).excuses(5)


def test_a_jump_beyond_the_highest_rate_ends_the_excuse_of_the_restart_before_it() -> None:
    assert not seen([*CYCLE, 2e-3, 0.2, 0.2, 0.19]).excuses(6)


def test_a_rate_that_was_rolled_back_from_does_not_excuse_a_restart_to_it() -> None:
    after = seen([*CYCLE, 0.2, 0.2]).after_rollback()
    seen([0.198, 0.1, 1e-7, 0.2], after, 5)
    assert after.at is None
    assert not after.excuses(9)
    seen([*CYCLE, 2e-3], after, 9)
    assert after.excuses(13), "but a rate that it was trained with before is one"


def test_a_rate_reached_long_before_a_rollback_excuses_a_restart_to_it() -> None:
    after = seen([*CYCLE, *[0.2] * 300]).after_rollback()
    assert seen([0.1, 1e-7, 0.2], after, 303).excuses(305)


def test_a_warm_up_after_a_rollback_raises_the_highest_rate() -> None:
    after = seen([*CYCLE, 0.2]).after_rollback()
    seen([1e-3, 1.2e-3, 1.6e-3, 2.2e-3, 3e-3, 4e-3, 1e-4, 4e-3], after, 4)
    assert after.excuses(11)


def geometric(first: float, last: float, count: int) -> list[float]:
    return [first * (last / first) ** (at / (count - 1)) for at in range(count)]


def test_a_range_test_excuses_a_rise_and_the_return_to_the_weights_before_it() -> None:
    test = seen(geometric(1e-6, 10.0, 150))
    assert test.excuses(149)
    seen([0.05] * 400, test, 150)
    assert test.excuses(151)
    assert not test.excuses(450)
    seen([5.0], test, 550)
    assert not test.excuses(551), "the rates of a test were not trained with"


def test_neither_a_linear_warm_up_nor_a_small_or_short_growth_is_a_range_test() -> None:
    assert not seen([at * 1e-4 for at in range(1, 2000)]).excuses(1999)
    assert not seen(geometric(1e-4, 1e-2, 150)).excuses(149)
    assert not seen(geometric(1e-6, 10.0, 15)).excuses(14)
    assert not seen([1e-6] * 50 + geometric(1e-6, 10.0, 150)).excuses(199), "a schedule that runs away"
