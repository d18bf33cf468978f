"""The drawn curves have what was put into them, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from zoo.curves.drawn import DrawnRun
from zoo.curves.healthy import PLAIN, TRAPS, healthy_run
from zoo.curves.ill import FORMS, NON_FINITE, ill_run

EVERY = [*FORMS, *NON_FINITE, "warm-up overshoot"]


def draw(name: str, seed: int) -> DrawnRun:
    return healthy_run(seed, name) if name in (PLAIN, *TRAPS) else ill_run(name, seed)


@pytest.mark.parametrize("name", [PLAIN, *TRAPS, *EVERY])
def test_the_same_seed_draws_the_same_run(name: str) -> None:
    first, other = draw(name, 3), draw(name, 3)
    assert first.setting == other.setting
    assert first.event == other.event
    assert all(
        np.array_equal(a.values, b.values, equal_nan=True) for a, b in zip(first.metrics, other.metrics, strict=True)
    )


@pytest.mark.parametrize("name", [PLAIN, *TRAPS, *EVERY])
def test_a_log_of_it_reads_as_losses_with_every_point(name: str) -> None:
    for seed in range(5):
        run = draw(name, seed)
        losses = run.history().of("loss")
        assert losses, seed
        assert sum(len(metric.values) for metric in run.metrics) == run.history().points


@pytest.mark.parametrize("name", EVERY)
def test_an_event_is_at_its_declared_steps(name: str) -> None:
    for seed in range(20):
        run = draw(name, seed)
        steps = np.concatenate([metric.series.steps for metric in run.history().metrics])
        assert run.event is not None
        assert steps.min() <= run.event.start <= run.event.end <= steps.max(), seed


def test_a_spike_is_as_far_above_the_point_before_as_it_is_large() -> None:
    run = ill_run("spike of one point", 1, size=1.0, points=500, noise="multiplicative", sigma=0.001, family="language")
    assert run.event is not None
    series = run.history().of("loss")[0].series
    at = int(np.flatnonzero(series.steps == run.event.start)[0])
    assert np.log(series.values[at] / series.values[at - 1]) == pytest.approx(1.0, abs=0.01)
    assert run.event.strength == pytest.approx(1000, rel=0.5)


def test_a_divergence_ends_as_far_above_its_best_as_it_is_large() -> None:
    for seed in range(10):
        fixed = {"points": 300, "noise": "multiplicative", "sigma": 0.001, "family": "language"}
        run = ill_run("divergence, slow rise", seed, size=0.5, length=0.5, **fixed)
        values = run.history().of("loss")[0].series.values
        assert np.log(values[-1] / values.min()) == pytest.approx(0.5, abs=0.05), seed


@pytest.mark.parametrize("noise", ["gaussian", "multiplicative", "heavy_tailed", "correlated", "skewed", "quantised"])
def test_noise_has_its_declared_size(noise: str) -> None:
    flat = {"points": 5000, "logging": "steps", "start": 2.01, "end": 2.0, "family": "language", "validations": 0}
    run = healthy_run(1, noise=noise, sigma=0.05, **flat)
    x = np.log(run.metrics[0].values)
    assert 1.4826 * np.median(np.abs(x - np.median(x))) == pytest.approx(0.05, rel=0.25)
