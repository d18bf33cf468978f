from __future__ import annotations

import numpy as np
import pytest
from detectors.series import at, judged

from mlflow_stability.kinds.loss.divergence import DivergenceClassic
from mlflow_stability.kinds.panel import replay
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading

swinging = np.tile([1.0, 3.0], 100)  # mean 2, deviation 1


@pytest.mark.parametrize(("value", "expected"), [(4.99, []), (5.01, [150])])
def test_a_spike_is_above_the_mean_and_three_deviations(value: float, expected: list[int]) -> None:
    loss = swinging.copy()
    loss[150] = value
    assert [event.step for event in judged("loss_spike:classic", loss=loss)] == expected


def test_it_looks_from_the_twenty_first_value_on() -> None:
    for step, expected in ((19, []), (20, [20])):
        assert [e.step for e in judged("loss_spike:classic", loss=at(swinging[:30], step, 50.0))] == expected


def test_it_looks_back_over_a_hundred_values() -> None:
    loss = np.concatenate([[1000.0], np.full(99, 2.0), [2.1], [2.1]])
    assert judged("loss_spike:classic", loss=loss[:101]) == []  # the thousand is still among the hundred
    loss[100] = 2.0
    assert [e.step for e in judged("loss_spike:classic", loss=loss)] == [101]


@pytest.mark.parametrize(("steps", "expected"), [(2, []), (3, [102]), (5, [102])])
def test_a_divergence_is_three_in_a_row_above_twice_the_mean(steps: int, expected: list[int]) -> None:
    assert [e.step for e in judged("divergence:classic", loss=at(np.ones(200), 100, 2.5, steps))] == expected


def test_twice_the_mean_itself_is_not_above_it() -> None:
    assert judged("divergence:classic", loss=at(np.ones(130), 100, 2.0, 30)) == []


def test_its_thresholds_can_be_set() -> None:
    loss = at(np.ones(200), 100, 1.6, 4)
    signals = (Signal("loss"),)
    records = [StepReading(step, signals, (float(value),)) for step, value in enumerate(loss)]
    rule = DivergenceClassic(divergence_threshold=1.5, consecutive_steps=4)
    assert [event.step for event in replay(records, [rule])] == [103]


def test_a_gradient_explodes_above_a_hundred_or_three_deviations() -> None:
    norms = np.tile([1.0, 3.0], 50)
    assert [e.step for e in judged("gradient_explosion:classic", grad_norm=at(norms, 5, 50.0))] == [5]
    norms[60] = 5.5
    assert [e.step for e in judged("gradient_explosion:classic", grad_norm=norms)] == [60]


def test_values_that_are_not_finite_do_not_enter_the_window() -> None:
    loss = swinging.copy()
    loss[100], loss[150] = np.nan, 9.0
    assert [e.step for e in judged("loss_spike:classic", loss=loss)] == [150]
