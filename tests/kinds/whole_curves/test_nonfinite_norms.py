"""A gradient norm that is no number for one step, while the loss stays finite."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import falling, run_named

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import Severity


def severities(at: int, value: float) -> list[tuple[str, Severity, bool | None]]:
    norms = np.random.default_rng(0).uniform(0.9, 1.1, 400)
    norms[at] = value
    findings = diagnosis_of(run_named(loss=falling(400), grad_norm=norms)).findings
    return [(finding.kind, finding.severity, finding.recovered) for finding in findings]


def test_one_nan_in_the_middle_of_a_run_is_a_warning() -> None:
    assert severities(300, np.nan) == [("nan_detected", Severity.WARNING, True)]


def test_one_nan_while_a_loss_scale_is_searched_is_only_mentioned() -> None:
    assert severities(3, np.nan) == [("nan_detected", Severity.INFO, True)]


@pytest.mark.parametrize("at", [3, 300])
def test_a_single_infinity_is_a_step_that_a_loss_scaler_skipped(at: int) -> None:
    assert severities(at, np.inf) == [("inf_detected", Severity.INFO, True)]


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize(("at", "severity"), [(0, Severity.INFO), (20, Severity.CRITICAL)])
def test_a_validation_that_begins_non_finite_was_not_measured_yet(value: float, at: int, severity: Severity) -> None:
    validations = falling(40)
    validations[at] = value
    findings = diagnosis_of(run_named(loss=falling(40), val_loss=validations)).findings
    assert [finding.severity for finding in findings if finding.kind in ("nan_detected", "inf_detected")] == [severity]


def test_a_training_loss_that_begins_non_finite_is_critical() -> None:
    losses = falling(40)
    losses[0] = np.inf
    assert diagnosis_of(run_named(loss=losses)).severity is Severity.CRITICAL


@pytest.mark.parametrize(
    ("at", "broken", "severity"),
    [(0, False, Severity.INFO), (0, True, Severity.CRITICAL), (9, False, Severity.CRITICAL)],
)
def test_a_training_loss_that_begins_non_finite_beside_a_finite_validation_was_not_measured_yet(
    at: int, broken: bool, severity: Severity
) -> None:
    losses, validations = falling(40), falling(40)
    losses[at] = np.nan
    validations[0] = np.nan if broken else validations[0]
    assert diagnosis_of(run_named(loss=losses, val_loss=validations)).severity is severity
