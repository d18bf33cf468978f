from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mlflow_stability import Diagnosis, judge
from mlflow_stability.errors import SettingsError


def falling(steps: int = 600) -> list[float]:
    generator = np.random.default_rng(0)
    return [float(value) for value in 2.0 / (1 + np.arange(steps) / 60) + 0.3 + 0.02 * generator.standard_normal(steps)]


def test_normal_losses_from_any_iterable_are_healthy() -> None:
    for given in (falling(), tuple(falling()), np.array(falling()), (item for item in falling())):
        diagnosis = judge(given)
        assert isinstance(diagnosis, Diagnosis)
        assert diagnosis.outcome == "healthy"


def test_a_spike_and_a_nan_are_found_at_their_steps() -> None:
    losses = falling()
    losses[400] = 60.0
    (spike,) = [finding for finding in judge(losses).findings if finding.kind == "loss_spike"]
    assert spike.start == 400
    losses[450:] = [math.nan] * 150
    broken = judge(losses, steps=range(1000, 1600))
    assert broken.outcome == "broken"
    assert "1450" in broken.verdict or "1,450" in broken.verdict


def test_gradient_norms_are_judged_beside_the_losses() -> None:
    norms = [1.0 + 0.1 * math.sin(number) for number in range(600)]
    norms[300] = 500.0
    kinds = [(finding.kind, finding.start) for finding in judge(falling(), grad_norms=norms).findings]
    assert ("gradient_explosion", 300) in kinds


def test_validation_losses_may_be_fewer() -> None:
    diagnosis = judge(falling(), val_losses=[1.5, 1.0, 0.8, 0.9, 1.2, 1.6, 2.2, 3.0])
    assert "overfitting" in [finding.kind for finding in diagnosis.findings]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"losses": []}, "losses must have at least one number"),
        ({"losses": 3}, "losses must be an iterable of numbers; got int."),
        ({"losses": [1.0], "grad_norms": [1.0, 2.0]}, "grad_norms must have as many values as losses, 1; it has 2."),
        ({"losses": [1.0], "steps": []}, "steps must have as many values as losses, 1; it has 0."),
    ],
)
def test_invalid_arguments_raise_an_error_that_names_the_argument(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(SettingsError, match=expected):
        judge(**arguments)
