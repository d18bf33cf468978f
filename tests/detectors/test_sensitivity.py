"""Sensitivity moves all declared thresholds by one factor."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.sensitivity import at_sensitivity, factor_of, only_scaled, scale_thresholds
from mlflow_stability.kinds.catalog import DETECTORS, default_detectors
from mlflow_stability.kinds.loss.loss_spike import LossSpike
from mlflow_stability.kinds.panel import Panel
from mlflow_stability.vocabulary.judging import FACTORS
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading


def test_normal_leaves_every_threshold_as_it_is() -> None:
    assert at_sensitivity(default_detectors(), "normal") == default_detectors()


@pytest.mark.parametrize("detector", [item for item in DETECTORS if item.by_sensitivity])
@pytest.mark.parametrize("sensitivity", ["low", "high"])
def test_the_factor_of_a_detector_can_be_read_off_it(detector: type[Detector], sensitivity: str) -> None:
    other = scale_thresholds(detector(), FACTORS[sensitivity])
    assert other != detector()
    assert factor_of(other) == pytest.approx(FACTORS[sensitivity])
    assert only_scaled(other)


def test_a_threshold_that_was_set_on_its_own_is_not_only_scaled() -> None:
    assert only_scaled(LossSpike())
    assert not only_scaled(LossSpike(threshold=16.0))
    assert not only_scaled(LossSpike(smallest_rise=2.0))


def test_a_multiple_of_a_level_moves_as_a_power_so_that_it_stays_above_one() -> None:
    assert scale_thresholds(LossSpike(), 0.5).smallest_rise == pytest.approx(math.sqrt(1.05))


def spikes(size: float, sensitivity: str) -> int:
    """The number of spikes found live where one point is this number of deviations above a flat loss."""
    losses = 2.0 * np.exp(0.02 * np.random.default_rng(3).standard_normal(600))
    losses[500] = 2.0 * np.exp(0.02 * size)
    panel, layout = Panel(at_sensitivity((LossSpike(),), sensitivity)), (Signal("loss"),)
    return sum(len(panel.judge(StepReading(at, layout, (value,)))) for at, value in enumerate(losses.tolist()))


def test_a_live_detector_needs_more_at_low_and_less_at_high_sensitivity() -> None:
    assert [spikes(7.0, factor) for factor in FACTORS] == [0, 0, 1]
    assert [spikes(11.0, factor) for factor in FACTORS] == [0, 1, 1]
    assert [spikes(30.0, factor) for factor in FACTORS] == [1, 1, 1]
