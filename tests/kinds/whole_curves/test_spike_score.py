from __future__ import annotations

import numpy as np
import pytest

from mlflow_stability.curves.curve_shape import spike_score


def as_defined(values: np.ndarray) -> float:
    """Value by value, as OLMo 2 has it."""
    windows = np.lib.stride_tricks.sliding_window_view(values, 1000)[:-1]
    return float((np.abs(values[1000:] - windows.mean(axis=1)) >= 7 * windows.std(axis=1)).mean())


@pytest.mark.parametrize("count", [1001, 1999, 2000, 2001, 4500])
@pytest.mark.parametrize("huge", [2.0, 1e12, 1e100])
def test_the_score_is_as_defined_also_after_a_huge_value(count: int, huge: float) -> None:
    values = 2 + 0.1 * np.random.default_rng(count).standard_normal(count)
    values[100] = huge
    values[[-1, -300]] += 3
    assert spike_score(values) == as_defined(values)
