"""A slow or full machine is information at first, and a warning where it lasts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from detectors.series import Floats, at, check_facts, noise, readings

from mlflow_stability.kinds.catalog import detectors_named
from mlflow_stability.kinds.hardware.utilization import ThroughputDrop
from mlflow_stability.kinds.panel import replay
from mlflow_stability.vocabulary.result import Finding, Severity

STEPS, BAD_FROM = 1000, 400
steady = np.exp(noise(1, STEPS, 0.05))
CASES: dict[str, tuple[str, Floats, float]] = {
    "throughput_drop": ("samples_per_second", 300 * steady, 0.3),
    "step_time_increase": ("step_time", 0.2 * steady, 3.0),
    "memory_pressure": ("memory_share", 0.5 * np.ones(STEPS), 1.96),
}


def judged_by_the_clock(kind: str, values: Floats, seconds: float) -> list[Finding]:
    """What the detector of this kind finds in steps of this duration in seconds."""
    timed = [replace(reading, time=1e9 + seconds * reading.step) for reading in readings({CASES[kind][0]: values})]
    events = replay(timed, detectors_named([kind]))
    for event in events:
        check_facts(event)
    return events


@pytest.mark.parametrize("kind", CASES)
def test_a_lasting_problem_is_reported_again_as_a_warning(kind: str) -> None:
    _, values, factor = CASES[kind]
    first, second = judged_by_the_clock(kind, at(values, BAD_FROM, factor, STEPS), 2.0)
    assert (first.severity, second.severity) == (Severity.INFO, Severity.WARNING)
    assert second.step == first.step + 100
    assert second.message.endswith(f"; so since step {first.step}.")


@pytest.mark.parametrize("kind", CASES)
def test_a_problem_of_less_than_100_steps_or_a_minute_stays_information(kind: str) -> None:
    _, values, factor = CASES[kind]
    short = judged_by_the_clock(kind, at(values, BAD_FROM, factor, 100), 2.0)
    fast = judged_by_the_clock(kind, at(values, BAD_FROM, factor, STEPS), 0.01)
    assert [event.severity for event in short + fast] == [Severity.INFO, Severity.INFO]


def test_a_minute_is_enough_once_there_were_100_steps() -> None:
    _, values, factor = CASES["throughput_drop"]
    _, second = judged_by_the_clock("throughput_drop", at(values, BAD_FROM, factor, STEPS), 0.25)
    assert second.step == BAD_FROM + ThroughputDrop().steps - 1 + 240
