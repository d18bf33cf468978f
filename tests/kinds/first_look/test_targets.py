"""Targets of one class in each batch, ignored targets, and labels out of range."""

from __future__ import annotations

import pytest
from detectors.series import judged

from mlflow_stability.kinds.first_look.batches import (
    IgnoredFacts,
    LabelRangeFacts,
    OneClassFacts,
    TargetSumFacts,
    UnreachableFacts,
)
from mlflow_stability.vocabulary.result import Severity


def test_batches_of_one_class_each_are_found() -> None:
    classes = [3.0, 1.0, 3.0, 0.0, 2.0, 2.0, 1.0]
    (finding,) = judged("one_class", class_low=classes, class_high=classes)
    assert (finding.severity, finding.step) == (Severity.WARNING, 5)
    assert finding.facts == OneClassFacts(6, (3, 1, 0, 2))
    assert finding.message == (
        "All targets of a step are of one class (classes 3, 1, 0, 2 in the 6 steps that were looked at, up to step 5): "
        "the data are not shuffled."
    )


def test_sorted_data_are_found_though_classes_end_within_batches() -> None:
    low, high = [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 2.0]
    (finding,) = judged("one_class", class_low=low, class_high=high)
    assert (finding.severity, finding.facts) == (Severity.WARNING, OneClassFacts(6, (0, 1, 2), 2))
    assert finding.message == (
        "The data are sorted by class: of 8 steps that were looked at, up to step 7, 6 have targets of one class "
        "(classes 0, 1, 2), and no class comes back."
    )
    many = [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 5.0, 6.0]
    assert judged("one_class", class_low=many, class_high=[*many[1:], 7.0]) == []


@pytest.mark.parametrize(
    ("low", "high"),
    [([0.0] * 8, [0.0] * 8), ([0.0, 1.0] * 4, [0.0, 1.0, 0.0, 3.0] * 2), ([9.0] * 8, [-1.0] * 8)],
    ids=["the same class always", "one batch is mixed", "all are ignored"],
)
def test_other_targets_are_not_reported(low: list[float], high: list[float]) -> None:
    assert judged("one_class", class_low=low, class_high=high) == []


def test_hardly_any_target_is_found_and_a_masked_language_model_is_not() -> None:
    (finding,) = judged("targets_ignored", targets_ignored=[0.98, 0.985, 0.98, 0.99, 0.9825, 0.98])
    assert (finding.severity, finding.facts) == (Severity.WARNING, IgnoredFacts(0.9825))
    assert "98.2% of the targets" in finding.message
    assert judged("targets_ignored", targets_ignored=[0.85] * 10) == []
    assert judged("targets_ignored", targets_ignored=[0.99, 0.99, 0.5] * 4) == []


def test_labels_out_of_range_are_found_once() -> None:
    findings = judged("label_range", label_low=[-1.0] * 5, label_high=[1.0] * 5)
    assert [finding.facts for finding in findings] == [LabelRangeFacts(-1.0)]
    assert findings[0].message == "A target of binary_cross_entropy_with_logits is -1 at step 0; it expects 0 to 1."
    assert judged("label_range", label_low=[0.0] * 5, label_high=[0.9] * 5) == []


def test_targets_that_the_last_activation_cannot_give_are_found() -> None:
    (finding,) = judged("targets_unreachable", targets_unreachable=[0.5, 0.4, 0.5, 0.5, 0.48])
    assert (finding.severity, finding.facts) == (Severity.WARNING, UnreachableFacts(0.48))
    assert "48% of the targets at step 4" in finding.message
    assert judged("targets_unreachable", targets_unreachable=[0.02] * 9) == []


def test_targets_that_add_up_to_more_than_one_are_found() -> None:
    (finding,) = judged("target_sum", targets_above_one=[0.9, 1.0, 0.8, 0.9, 0.75])
    assert (finding.severity, finding.facts) == (Severity.WARNING, TargetSumFacts(0.75))
    assert "add up to more than 1.5 in 75% of the rows at step 4" in finding.message
    assert judged("target_sum", targets_above_one=[0.9, 0.2] * 5) == []
