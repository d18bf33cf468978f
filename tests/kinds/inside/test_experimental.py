from __future__ import annotations

import numpy as np
import pytest
from detectors.series import Floats, at, decaying, judged, noise

from mlflow_stability.kinds.catalog import DETECTORS
from mlflow_stability.vocabulary.result import Severity

steady = np.exp(noise(1, 400, 0.05))

# What each looks at, a series in which it must say something once, at which step, and one in which it must not.
CASES: dict[str, tuple[str, Floats, int, Floats]] = {
    "adam_rms_high": ("adam_rms", at(0.4 * steady, 200, 5.0, 3), 200, 1.2 * steady),
    "throughput_drop": ("tokens_per_second", at(1e5 * steady, 200, 0.3, 100), 204, at(1e5 * steady, 200, 0.3, 3)),
    "step_time_increase": ("step_time", at(0.2 * steady, 200, 3.0, 100), 209, at(0.2 * steady, 200, 30.0, 2)),
    "memory_pressure": ("memory_share", at(0.5 * np.ones(400), 200, 1.96, 50), 202, 0.9 * np.ones(400)),
    "low_gpu_utilization": ("gpu_utilization", 0.3 * np.ones(9), 4, 0.97 * np.ones(9)),
    "low_mfu": ("mfu", 0.2 * steady, 49, 0.5 * steady),
    "oscillation": ("loss", 2 + 0.4 * (-1.0) ** np.arange(400), 255, 2 + noise(2, 400, 0.4)),
    "slow_progress": ("loss", 2 - np.arange(3000) / 1e6, 999, decaying(3000)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_problem_is_reported_once_as_information_and_healthy_values_give_no_finding(name: str) -> None:
    quantity, ill, step, healthy = CASES[name]
    (event,) = judged(name, **{quantity: ill})
    assert (event.step, event.kind, event.severity) == (step, name, Severity.INFO)
    assert judged(name, **{quantity: healthy}) == []


def test_every_experimental_detector_says_no_more_than_info() -> None:
    for detector in DETECTORS:
        assert not detector.experimental or set(detector.severities) == {Severity.INFO}


def test_single_long_steps_are_no_slower_training() -> None:
    checkpoints = np.where(np.arange(400) % 50 == 0, 40.0, 1.0) * 0.2 * steady
    assert judged("step_time_increase", step_time=checkpoints) == []


def test_a_throughput_that_was_zero_cannot_drop() -> None:
    assert judged("throughput_drop", tokens_per_second=np.concatenate([np.zeros(31), np.arange(0, -0.06, -0.01)])) == []
