from __future__ import annotations

import math

import pytest

from mlflow_stability.detectors.layer_values import gradient_flow


@pytest.mark.parametrize(
    ("norms", "score"),
    [
        ([1.0, 2.0, 0.5, 0.1], 1.0),
        ([1e-9, 1e-3, 0.5, 1.0], 0.5),
        ([1.0, 1.0, 1.0, 1e4], 0.75),
        ([math.nan, math.inf, 1.0, 1.0], 0.5),
        ([0.0, 0.0], 0.0),
        ([], 1.0),
    ],
)
def test_the_score_is_the_share_of_layers_in_the_band(norms: list[float], score: float) -> None:
    assert gradient_flow(norms) == score
