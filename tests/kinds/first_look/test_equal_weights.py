"""Weights that all have one value when the training begins."""

from __future__ import annotations

from detectors.series import judged

from mlflow_stability.kinds.first_look.settings import EqualWeightsFacts
from mlflow_stability.vocabulary.result import Severity


def test_a_model_whose_weights_are_all_equal_is_found() -> None:
    (finding,) = judged("equal_weights", weights_equal=[1.0])
    assert (finding.severity, finding.facts) == (Severity.WARNING, EqualWeightsFacts())


def test_a_layer_that_starts_at_zero_is_not_reported() -> None:
    assert judged("equal_weights", weights_equal=[0.5]) == []
