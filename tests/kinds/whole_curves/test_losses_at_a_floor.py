"""Losses that are as low as they get from the first step on, as after a resume, with large and correlated noise."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import run_named

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.kinds.loss.divergence_curve import DivergenceRule
from mlflow_stability.vocabulary.result.finding import Finding

Floats = np.ndarray
SEEDS = range(20)


def rises(values: Floats) -> list[Finding]:
    return DivergenceRule().find(run_curves(run_named(loss=values)))


def at_floor(seed: int, points: int, kept: float, noise: float, rise: float = 0.0) -> Floats:
    """Return a loss of 1e-3 whose logarithm has noise of which `kept` is left at the next point."""
    fresh = np.random.default_rng(seed).normal(0, noise * np.sqrt(1 - kept**2), points)
    logarithms = np.zeros(points)
    for point in range(1, points):
        logarithms[point] = kept * logarithms[point - 1] + fresh[point]
    return 1e-3 * np.exp(logarithms + rise * np.arange(points) / points)


@pytest.mark.parametrize("noise", [0.3, 0.7, 1.0])
def test_a_flat_loss_does_not_diverge_whatever_its_noise(noise: float) -> None:
    assert [seed for seed in SEEDS if rises(at_floor(seed, 1000, 0.0, noise))] == []


def test_a_flat_loss_whose_first_point_is_low_does_not_diverge() -> None:
    flagged = []
    for seed in SEEDS:
        values = at_floor(seed, 1000, 0.0, 0.8)
        values[:3] = np.percentile(values, [2, 50, 50])
        flagged += rises(values)
    assert flagged == []


def test_a_rise_that_the_curve_came_back_from_before_is_not_a_divergence() -> None:
    steps = np.arange(600)
    hills = 1.6 * np.exp(-(((steps - 250) / 60) ** 2)) + 1.4 / (1 + np.exp(-(steps - 560) / 5))
    noise = [np.random.default_rng(seed).normal(0, 0.3, 600) for seed in SEEDS]
    twice = [rises(1e-3 * np.exp(hills + drawn)) for drawn in noise]
    once = [rises(1e-3 * np.exp(np.where(steps < 400, 0.0, hills) + drawn)) for drawn in noise]
    assert sum(map(len, twice)) == 0
    assert sum(map(len, once)) == len(SEEDS)


@pytest.mark.parametrize(("kept", "noise", "most"), [(0.9, 0.5, 1), (0.9, 0.8, 3), (0.97, 0.8, 4)])
def test_a_loss_that_wanders_rarely_diverges_and_one_that_rises_does(kept: float, noise: float, most: int) -> None:
    flat = [bool(rises(at_floor(seed, 1000, kept, noise))) for seed in SEEDS]
    risen = [bool(rises(at_floor(seed, 1000, kept, noise, 3.0))) for seed in SEEDS]
    assert sum(flat) <= most
    assert sum(risen) >= 18
