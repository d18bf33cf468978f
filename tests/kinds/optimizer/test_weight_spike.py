from __future__ import annotations

import numpy as np
import pytest
from detectors.series import at, judged, noise

STEADY = 10.0 * np.exp(noise(0, 80, 0.01))


@pytest.mark.parametrize("measurement", [3, 15, 60])
def test_weights_that_were_overwritten_are_found_at_the_next_measurement(measurement: int) -> None:
    (event,) = judged("weight_spike", param_norm=at(STEADY, measurement, 3000.0, 200))
    assert event.step == measurement
    assert "threshold 10 times" in event.message


@pytest.mark.parametrize("first", [0.0, 1e-6, 1e-3])
def test_weights_that_start_near_zero_are_no_spike(first: float) -> None:
    assert judged("weight_spike", param_norm=first + 1e-3 * np.sqrt(np.arange(80) * 10)) == []


def test_two_measurements_say_nothing_of_what_is_usual() -> None:
    assert judged("weight_spike", param_norm=at(STEADY, 2, 3000.0, 78)) == []


def test_a_spike_that_stays_is_one_finding() -> None:
    assert len(judged("weight_spike", param_norm=at(STEADY, 20, 50.0, 60))) == 1


@pytest.mark.parametrize("scale", [1e-3, 0.0815, 10.0])
@pytest.mark.parametrize("power", [0.8, 1.0, 1.5])
def test_weights_that_grow_from_zero_without_a_jump_are_no_spike(scale: float, power: float) -> None:
    growing = scale * np.arange(1.0, 401.0) ** power
    assert judged("weight_spike", param_norm=growing) == []
    (event,) = judged("weight_spike", param_norm=np.concatenate([growing, [40 * growing[-1]] * 3]))
    assert event.step == len(growing)
