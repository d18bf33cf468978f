"""How many points are sent at once, and how long the next request waits."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from mlflow_stability.courier.sinks.metric_sink import DeliveryPace
from mlflow_stability.errors import TrackingError
from mlflow_stability.tracking.thinning import Point
from mlflow_stability.vocabulary.measured.signal import Signal

POINTS = [Point(Signal("loss"), step, 1.0, 0.0) for step in range(200)]
SQLITE, SERVER = "sqlite:///x", "http://localhost:5000"


class Store:
    """The border of tracking: takes this long, or refuses."""

    def __init__(self, seconds: float = 0.0, refuses: bool = False) -> None:
        self.seconds, self.refuses = seconds, refuses

    def log(self, points: Sequence[Point], prefix: str) -> None:
        time.sleep(self.seconds)
        if self.refuses:
            raise TrackingError("away")


@pytest.mark.parametrize(("uri", "times"), [(SQLITE, 24.0), (SERVER, 0.25)])
def test_a_request_is_followed_by_a_pause_as_long_as_the_store_needs_except_in_a_hurry(uri: str, times: float) -> None:
    pace = DeliveryPace(uri)
    assert pace.wait(time.monotonic(), hurry=False) == 0.0
    began = time.monotonic()
    pace.send(Store(0.02), POINTS, "")
    ended = time.monotonic()
    left = pace.wait(ended, hurry=False)
    assert 0.02 * times - (ended - began - 0.02) <= left <= (ended - began) * times
    assert pace.wait(ended, hurry=True) == 0.0
    assert pace.wait(ended + left + 0.001, hurry=False) == 0.0


def test_requests_that_fail_become_smaller_and_grow_again_when_they_arrive() -> None:
    pace = DeliveryPace(SQLITE)
    sizes = [pace.batch]
    for _ in range(6):
        with pytest.raises(TrackingError):
            pace.send(Store(refuses=True), POINTS, "")
        sizes.append(pace.batch)
    assert sizes == [200, 100, 50, 25, 12, 10, 10]
    for _ in range(6):
        pace.send(Store(), POINTS[: pace.batch], "")
        sizes.append(pace.batch)
    assert sizes[7:] == [20, 40, 80, 160, 200, 200]


def test_the_rate_of_a_store_is_learnt_from_full_requests_only() -> None:
    pace = DeliveryPace(SQLITE)
    usual = pace.points_in(5.0)
    assert usual == pytest.approx(1000.0 * 0.04 * 5.0)
    pace.send(Store(0.02), POINTS[:20], "")
    assert pace.points_in(5.0) == usual
    pace.send(Store(0.5), POINTS, "")
    assert pace.points_in(5.0) < usual
