from __future__ import annotations

from typing import Any

import pytest

from mlflow_stability.session import courier_link
from mlflow_stability.session.courier_link import LONGEST_WAIT, DeliveryWait


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(courier_link.time, "monotonic", clock.monotonic)
    return clock


def waits(patience: DeliveryWait, clock: Clock, pages: list[dict[str, Any]], every: float = 10.0) -> float:
    """For how long, where the courier's page is one of these after the other and stays at the last."""
    began, place = clock.now, 0
    while not patience.is_over(pages[min(place, len(pages) - 1)]):
        clock.now += every
        place += 1
    return clock.now - began


def test_it_ends_when_nothing_moves(clock: Clock) -> None:
    assert waits(DeliveryWait(30), clock, [{"state": "delivering", "waiting_records": 9}]) == 30


def test_it_waits_as_long_as_the_number_of_waiting_records_falls(clock: Clock) -> None:
    pages = [{"state": "delivering", "waiting_records": left} for left in range(5, -1, -1)]
    assert waits(DeliveryWait(30), clock, pages) == 50 + 30


def test_it_does_not_wait_forever(clock: Clock) -> None:
    pages = [{"state": "delivering", "waiting_records": left} for left in range(1000, 0, -1)]
    assert waits(DeliveryWait(30), clock, pages) == LONGEST_WAIT * 30


def test_it_is_no_progress_that_the_store_does_not_answer(clock: Clock) -> None:
    pages = [{"state": "waiting", "waiting_records": left, "error": "no answer"} for left in range(1000, 0, -1)]
    assert waits(DeliveryWait(30), clock, pages) == 30


def test_a_given_wait_is_used_as_it_is(clock: Clock) -> None:
    pages = [{"state": "delivering", "waiting_records": left} for left in range(1000, 0, -1)]
    assert waits(DeliveryWait(40, 40), clock, pages) == 40
    assert waits(DeliveryWait(0), clock, pages) == 0
