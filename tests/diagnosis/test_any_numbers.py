from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import falling, run_named
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_stability.diagnosis.diagnose import diagnosis_of

numbers = st.one_of(
    st.sampled_from([0.0, 1.0, 5e-324, 1e-300, 1e308, -1e308, float("inf"), float("-inf"), float("nan")]),
    st.floats(),
    st.floats(0, 5),
)
curves = st.lists(numbers, min_size=2, max_size=60)


@given(curves, curves, curves)
@settings(max_examples=60)
def test_no_number_that_a_log_may_hold_makes_a_diagnosis_fail(
    losses: list[float], validations: list[float], norms: list[float]
) -> None:
    count = min(len(losses), len(validations), len(norms))
    named = {"loss": losses[:count], "val_loss": validations[:count], "grad_norm": norms[:count]}
    assert diagnosis_of(run_named(**named)).verdict


@pytest.mark.parametrize("place", [1, 30, 52])
@pytest.mark.parametrize("value", [0.0, 5e-324, 1e308])
def test_a_single_odd_loss_before_or_within_a_divergence_is_judged(place: int, value: float) -> None:
    losses = falling(60)
    losses[50:] *= 4
    losses[place] = value
    assert diagnosis_of(run_named(loss=losses)).outcome == "diverged"


@pytest.mark.parametrize("value", [50.0, 1e5, 1e30, 1e300])
def test_a_huge_last_loss_of_any_size_is_a_spike(value: float) -> None:
    losses = falling(60)
    losses[-1] = value
    assert {finding.kind for finding in diagnosis_of(run_named(loss=losses)).findings} == {"loss_spike"}


def test_a_gradient_norm_that_grew_from_the_smallest_float_is_an_explosion() -> None:
    norms = np.exp(np.r_[np.full(30, -744.0), np.linspace(-744, 2, 70)])
    losses = np.r_[np.linspace(3, 1, 30), np.linspace(1, 2, 70)]
    kinds = {finding.kind for finding in diagnosis_of(run_named(loss=losses, grad_norm=norms)).findings}
    assert "gradient_explosion" in kinds


def test_values_too_large_to_be_compared_are_not_a_divergence() -> None:
    losses = np.where(np.arange(100) % 3 == 0, 1e308, -1e308)
    assert "divergence" not in {finding.kind for finding in diagnosis_of(run_named(loss=losses)).findings}
