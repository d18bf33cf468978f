"""A term of the loss that is added, or whose weight grows, as the cause of a divergence."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import Action, Cause, Finding, Severity, Text

COUNT, AT = 400, 250
RISING = np.r_[falling(AT, first=2.3, last=0.9), np.geomspace(1.0, 5e4, COUNT - AT)]
DIVERGED = Finding.at(Text("loss rose."), AT, Severity.CRITICAL, kind="divergence")


def cause_with(quantity: str, changes: dict[int, float]) -> Cause | None:
    series = metric_of(f"stability/{quantity}", list(changes.values()), steps=list(changes))
    return diagnosis_of(run_of(metric_of("loss", RISING), series, events=[DIVERGED])).cause


def test_a_term_that_was_added_just_before_is_the_certain_cause() -> None:
    cause = cause_with("loss_terms", {0: 1.0, AT: 2.0})
    assert cause is not None
    assert (cause.name, cause.certainty, cause.since) == ("loss_term_changed", "certain", AT)
    assert cause.statement == f"The loss got more terms at step {AT}: 1 before, 2 or more from then on."
    assert [remedy.action for remedy in cause.remedies] == [Action.LOWER_WEIGHT_OF_TERM]


def test_a_term_that_was_added_long_before_is_a_possible_cause() -> None:
    cause = cause_with("loss_terms", {0: 1.0, 60: 2.0})
    assert cause is not None
    assert (cause.name, cause.certainty) == ("loss_term_changed", "possible")


def test_a_weight_that_grew_before_is_the_cause() -> None:
    cause = cause_with("loss_weight", {0: 0.1, AT - 5: 0.5})
    assert cause is not None
    assert (cause.name, cause.since) == ("loss_term_changed", AT - 5)
    assert "from 0.1 to 0.5" in cause.statement


@pytest.mark.parametrize(
    ("quantity", "changes"),
    [
        ("loss_terms", {0: 2.0, AT: 1.0}),
        ("loss_terms", {0: 1.0, AT + 60: 2.0}),
        ("loss_weight", {0: 0.5, AT - 5: 0.6}),
    ],
    ids=["taken away", "afterwards", "hardly grew"],
)
def test_a_term_that_cannot_have_raised_the_loss_is_not_the_cause(quantity: str, changes: dict[int, float]) -> None:
    cause = cause_with(quantity, changes)
    assert cause is None or cause.name != "loss_term_changed"
