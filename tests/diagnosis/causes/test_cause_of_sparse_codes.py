"""A temperature of sparse codes that leaves its range explains what comes with it."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.causes.test_cause_inside_slowly import measured
from diagnosis.histories import falling, metric_of, run_of

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import Cause

COUNT, AT = 400, 201
STEPS = list(range(20, COUNT, 20))


def cause_with(temperatures: list[float]) -> Cause | None:
    """Of a loss that jumps at step 201, with temperatures measured every 20 steps."""
    noise = np.random.default_rng(1)
    losses, norms = falling(COUNT), np.exp(noise.normal(0, 0.1, COUNT))
    losses[AT:] = 3.2 * np.exp(noise.normal(0, 0.02, COUNT - AT))
    norms[AT] = 9.0
    codes = measured("sdr_temperature", "encoder", temperatures, STEPS)
    return diagnosis_of(run_of(metric_of("loss", losses), metric_of("grad_norm", norms), codes, events=[])).cause


def changing(before: float, after: float, at: int = AT, drift: float = 0.0) -> list[float]:
    return [(before if step < at else after) * (1 + drift * step) for step in STEPS]


@pytest.mark.parametrize(
    ("temperatures", "certainty"),
    [
        (changing(1.0, 1e-4), "likely"),
        (changing(1.0, 1e-4, at=181), "likely"),
        (changing(1.0, 20.0), "likely"),
        (changing(1.0, 1e-4, drift=1e-4), "possible"),
    ],
)
def test_a_temperature_that_left_its_range_is_the_cause(temperatures: list[float], certainty: str) -> None:
    cause = cause_with(temperatures)
    assert cause is not None
    assert (cause.name, cause.place, cause.certainty) == ("sdr_temperature", "encoder", certainty)
    assert cause.statement.startswith("The temperature of the sparse codes of encoder went from 1")


@pytest.mark.parametrize(
    "temperatures", [changing(1.0, 0.5), changing(1.0, 1e-4, at=260), [1.0, 1e-4, *[1.0] * (len(STEPS) - 2)]]
)
def test_a_temperature_in_range_or_lowered_at_another_time_is_not_the_cause(temperatures: list[float]) -> None:
    cause = cause_with(temperatures)
    assert cause is None or cause.name != "sdr_temperature"
