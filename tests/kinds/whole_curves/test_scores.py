"""The score of a finding says at which sensitivities it is found, and how severe it may be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from diagnosis.histories import falling, run_named
from findings import over_steps
from zoo.curves.ill import ill_run

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.detectors.sensitivity import at_sensitivity
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.diagnosis.findings.replay import apply_rules, cap_severities
from mlflow_stability.kinds.catalog import RULES, default_detectors
from mlflow_stability.kinds.loss.loss_spike import LossSpike
from mlflow_stability.kinds.panel import Panel
from mlflow_stability.vocabulary.judging import MAX_SCORE
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.result.finding import Finding
from mlflow_stability.vocabulary.run import RunHistory


def rules_find(history: RunHistory, sensitivity: str) -> list[Finding]:
    detectors = at_sensitivity(default_detectors(), sensitivity)
    return [rule for rule in apply_rules(RULES, run_curves(history), detectors) if rule.severity > Severity.INFO]


def same(finding: Finding, other: Finding) -> bool:
    alike = (finding.kind, finding.metric) == (other.kind, other.metric)
    return alike and finding.start <= other.end and other.start <= finding.end


@pytest.mark.slow
@pytest.mark.parametrize("form", ["spike of one point", "divergence, slow rise", "overfitting", "plateau at chance"])
def test_low_sensitivity_finds_what_has_a_score_of_one_and_a_half(form: str) -> None:
    sure = unsure = 0
    for seed in range(60):
        history = ill_run(form, seed, points=60).history()
        normal, low = (rules_find(history, name) for name in ("normal", "low"))
        for item in normal:
            score = max(first.score for first in normal if same(first, item))  # several rules may find it
            sure += score > 1.6
            unsure += score < 1.4
            if not 1.4 < score < 1.6:
                assert any(same(first, item) for first in low) == (score > 1.5), seed
    assert sure
    assert unsure


def test_a_score_does_not_depend_on_the_sensitivity_that_was_asked_for() -> None:
    losses = falling(300)
    losses[200:202] *= 1.6
    scores = [next(e.score for e in rules_find(run_named(loss=losses), at)) for at in ("low", "normal", "high")]
    assert scores == pytest.approx([scores[1]] * 3, rel=0.15)


def test_a_larger_spike_has_a_higher_score() -> None:
    def score(factor: float) -> float:
        losses = falling(300)
        losses[200] *= factor
        (finding,) = (
            finding for finding in diagnosis_of(run_named(loss=losses)).findings if finding.kind == "loss_spike"
        )
        return finding.score

    assert 1 <= score(1.4) < score(2.0) < score(6.0)


def test_what_is_no_matter_of_degree_has_the_highest_score() -> None:
    losses = falling(300)
    losses[200:] = math.nan
    (finding,) = (
        finding for finding in diagnosis_of(run_named(loss=losses)).findings if finding.kind == "nan_detected"
    )
    assert (finding.score, finding.severity) == (MAX_SCORE, Severity.CRITICAL)


def test_what_is_found_live_has_its_sigma_over_its_threshold_for_a_score() -> None:
    losses = 2.0 * np.exp(0.02 * np.random.default_rng(3).standard_normal(600))
    losses[500] *= 1.8
    panel, layout = Panel((LossSpike(),)), (Signal("loss"),)
    (event,) = (e for at, item in enumerate(losses.tolist()) for e in panel.judge(StepReading(at, layout, (item,))))
    assert event.score == pytest.approx(event.metrics["z"] / event.metrics["limit"], rel=0.01)
    assert event.score > 2


@pytest.mark.parametrize(("score", "severity"), [(1.2, Severity.WARNING), (1.5, Severity.CRITICAL)])
def test_only_what_is_sure_is_critical(score: float, severity: Severity) -> None:
    curve = over_steps("divergence", Severity.CRITICAL, 1, 1, 9, "loss rose", score=score)
    (result,) = cap_severities([curve])
    assert result.severity is severity
