from __future__ import annotations

import numpy as np
import pytest
from detectors.series import judged

from mlflow_stability.vocabulary.result import Finding, Severity

STEPS = np.arange(60)


def ahead(norms: np.ndarray) -> list[Finding]:
    return judged("divergence_ahead", param_norm=norms)


def course(seed: int = 0, growth: float = 0.002) -> np.ndarray:
    """Weights that grow evenly, with a little noise."""
    noise = np.random.default_rng(seed).normal(0, 0.001, len(STEPS))
    return 20 * np.exp(growth * STEPS + noise)


def test_weights_that_begin_to_grow_faster_are_a_sign_of_divergence() -> None:
    norms = course() * np.exp(0.02 * np.maximum(STEPS - 30, 0))
    (event,) = ahead(norms)
    assert event.severity == Severity.INFO
    assert 31 <= event.step <= 35
    assert "above its course" in event.message
    assert "threshold 4" in event.message
    assert event.metrics["param_norm"] == pytest.approx(norms[event.step])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("growth", [-0.01, 0.0, 0.002, 0.05])
def test_weights_that_grow_or_shrink_steadily_are_no_finding(seed: int, growth: float) -> None:
    assert ahead(course(seed, growth)) == []


def test_weights_that_start_to_shrink_are_no_finding() -> None:
    assert ahead(course() * np.exp(-0.02 * np.maximum(STEPS - 30, 0))) == []


def test_one_slightly_high_measurement_is_no_finding_and_a_jump_is_reported_once() -> None:
    norms = course()
    norms[30] *= 1.03
    assert ahead(norms) == []
    norms[30:] *= 1.2
    assert len(ahead(norms)) == 1


def test_non_finite_and_zero_values_are_ignored() -> None:
    norms = course()
    norms[[10, 20]] = np.nan, 0.0
    assert ahead(norms) == []


def test_the_norms_of_layers_are_not_judged() -> None:
    norms = course() * np.exp(0.05 * np.maximum(STEPS - 30, 0))
    assert judged("divergence_ahead", **{"param_norm@layer.0": norms}) == []
