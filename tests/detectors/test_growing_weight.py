"""A loss that gets another term, or whose weights a schedule changes, has not diverged by itself."""

from __future__ import annotations

import numpy as np
import pytest
from detectors.series import Floats, decaying, judged, noise
from diagnosis.histories import metric_of, run_of

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text.metric_names import Meaning

STEPS, SECOND = 600, 300
FIRST_PHASE = decaying(SECOND, 0.02, 2.3, 40.0)
RISING = decaying(STEPS, 0.4, 2.3, 40.0) + np.linspace(0.0, 0.9, STEPS)
Sparse = list[float | None]


def found_in(losses: Floats, **terms: Sparse) -> list[Finding]:
    return judged("divergence loss_spike", loss=losses * np.exp(noise(0, STEPS, 0.05)), **terms)


def changes(*pairs: tuple[int, float]) -> Sparse:
    values = dict(pairs)
    return [values.get(step) for step in range(STEPS)]


def schedule(weights: Floats) -> Sparse:
    return changes(*((step, float(weights[step])) for step in range(0, STEPS, 10)))


def test_a_loss_with_another_term_has_a_level_of_its_own() -> None:
    losses = np.r_[FIRST_PHASE, decaying(STEPS - SECOND, 0.4, 0.8, 60.0)]
    assert found_in(losses, loss_terms=changes((0, 1.0), (SECOND, 2.0))) == []
    assert "divergence" in {finding.kind for finding in found_in(losses, loss_terms=changes((0, 1.0)))}
    batches = changes(*((step, 1.0 + step % 3) for step in range(SECOND + 1)))
    assert "divergence" in {finding.kind for finding in found_in(losses, loss_terms=batches)}


def test_a_loss_with_another_term_that_diverges_is_found() -> None:
    losses = np.r_[FIRST_PHASE, decaying(150, 0.4, 0.8, 60.0), np.full(150, 4.0)]
    result = found_in(losses, loss_terms=changes((0, 1.0), (SECOND, 2.0)))
    assert [450 < finding.step < 470 for finding in result if finding.kind == "divergence"] == [True]


def test_a_loss_that_rises_with_the_weight_of_a_term_has_not_diverged() -> None:
    assert found_in(RISING, loss_weight=schedule(np.linspace(0.0, 1.0, STEPS))) == []
    assert "divergence" in {finding.kind for finding in found_in(RISING, loss_weight=changes())}
    of_batches = schedule(np.where(np.arange(STEPS) // 10 % 2, 1.0, 0.5))
    assert "divergence" in {finding.kind for finding in found_in(RISING, loss_weight=of_batches)}


@pytest.mark.parametrize("weights", [np.linspace(1.0, 1.5, STEPS), np.linspace(1.0, 0.1, STEPS)], ids=["up", "down"])
def test_a_loss_that_rises_by_a_larger_factor_than_a_weight_has_diverged(weights: Floats) -> None:
    losses = np.r_[decaying(400, 0.4, 2.3, 40.0), np.full(200, 4.0)]
    result = found_in(losses, loss_weight=schedule(weights))
    assert [400 < finding.step < 430 for finding in result if finding.kind == "divergence"][:1] == [True]
    assert diagnosis_of(recorded(losses, "loss_weight", schedule(weights))).outcome == "diverged"


def test_a_loss_that_explodes_beside_a_growing_weight_is_found() -> None:
    losses = np.r_[RISING[:500], np.full(100, 1e4)]
    assert "divergence" in {
        finding.kind for finding in found_in(losses, loss_weight=schedule(np.linspace(0.0, 1.0, STEPS)))
    }


def recorded(losses: Floats, name: str, values: Sparse) -> RunHistory:
    steps = [step for step, value in enumerate(values) if value is not None]
    more = metric_of(name, [values[step] for step in steps], steps=steps, meaning=Meaning(name, is_known=True))
    return run_of(metric_of("loss", losses * np.exp(noise(0, STEPS, 0.05))), more)


def test_a_whole_curve_that_rises_with_a_weight_is_information() -> None:
    weights = schedule(np.linspace(0.01, 1.0, STEPS))
    (finding,) = diagnosis_of(recorded(RISING, "loss_weight", weights)).findings
    assert (finding.kind, finding.severity) == ("divergence", Severity.INFO)
    assert "The weight of a term of the loss changed from 0.208 to 0.985 meanwhile" in finding.message
    constant = schedule(np.full(STEPS, 0.5))
    assert diagnosis_of(recorded(RISING, "loss_weight", constant)).outcome == "diverged"


@pytest.mark.parametrize("level", [0.3, 0.15])
def test_a_whole_curve_is_judged_from_its_last_terms_on(level: float) -> None:
    losses = np.r_[FIRST_PHASE, np.full(SECOND, level)]
    terms = changes((0, 1.0), (SECOND, 2.0))
    assert diagnosis_of(recorded(losses, "loss_terms", terms)).outcome == "healthy"
    assert diagnosis_of(recorded(losses, "loss_terms", changes((0, 1.0)))).outcome == "diverged"


def test_a_term_that_was_added_before_a_divergence_is_its_cause() -> None:
    losses = np.r_[FIRST_PHASE, FIRST_PHASE[-5:], np.geomspace(0.1, 1e6, STEPS - SECOND - 5)]
    diagnosis = diagnosis_of(recorded(losses, "loss_terms", changes((0, 1.0), (SECOND, 3.0))))
    assert diagnosis.cause is not None
    assert (diagnosis.cause.name, diagnosis.cause.since) == ("loss_term_changed", SECOND)
    assert str(diagnosis.remedies[0]).startswith("Lower the weight of that term of the loss")
    grown = changes((0, 0.1), (SECOND, 100.0))
    diagnosis = diagnosis_of(recorded(losses, "loss_weight", grown))
    assert diagnosis.cause is not None
    assert diagnosis.cause.name == "loss_term_changed"
