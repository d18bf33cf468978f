"""Outputs that are the same for each row of a batch."""

from __future__ import annotations

from detectors.series import judged

from mlflow_stability.kinds.first_look.dimensions import SameOutputFacts
from mlflow_stability.vocabulary.result import Severity


def test_outputs_that_never_differ_between_rows_are_found_once() -> None:
    (finding,) = judged("same_output", output_spread=[0.0] * 11)
    assert (finding.severity, finding.step, finding.facts) == (Severity.WARNING, 9, SameOutputFacts(10))


def test_a_last_layer_of_zeros_that_begins_to_learn_is_not_reported() -> None:
    assert judged("same_output", output_spread=[0.0] * 9 + [1e-6] + [0.0] * 9) == []
