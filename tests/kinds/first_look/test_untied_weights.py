"""Output layers that begin as a copy of an embedding."""

from __future__ import annotations

from detectors.series import judged

from mlflow_stability.kinds.first_look.settings import UntiedWeightsFacts
from mlflow_stability.vocabulary.result import Severity


def test_a_copied_output_layer_is_found_once() -> None:
    (finding,) = judged("untied_weights", **{"copied_embedding@head": [1.0, 1.0]})
    assert (finding.severity, finding.facts) == (Severity.WARNING, UntiedWeightsFacts("head"))


def test_a_separate_output_layer_is_not_reported() -> None:
    assert judged("untied_weights", **{"copied_embedding@head": [0.0]}) == []
