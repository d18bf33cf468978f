"""Rules of whole curves follow the sensitivity of the detectors that were asked for."""

from __future__ import annotations

from dataclasses import fields

import pytest
from zoo.curves.healthy import PLAIN, healthy_run
from zoo.curves.ill import ill_run

from mlflow_stability.detectors.sensitivity import at_sensitivity
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.catalog import DETECTORS, RULES, default_detectors
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.run import RunHistory

LEVELS = ("low", "normal", "high")


def serious(history: RunHistory, sensitivity: str) -> set[str]:
    findings = diagnosis_of(history, detectors=at_sensitivity(default_detectors(), sensitivity)).findings
    return {finding.kind for finding in findings if finding.severity >= Severity.WARNING}


@pytest.mark.parametrize("judgement", [detector for detector in (*DETECTORS, *RULES) if detector.by_sensitivity])
def test_every_threshold_that_is_declared_to_move_is_one_of_its_class(judgement: type) -> None:
    assert set(judgement.by_sensitivity) <= {field.name for field in fields(judgement)}


@pytest.mark.parametrize("rule", [item for item in RULES if item.by_sensitivity])
def test_every_rule_that_moves_has_a_detector_of_its_kind_to_follow(rule: type) -> None:
    followed = [detector for detector in DETECTORS if detector.kind == rule.kind and not detector.rule]
    assert any(item.by_sensitivity for item in followed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "kind"),
    [
        ("spike of one point", "loss_spike"),
        ("divergence, slow rise", "divergence"),
        ("overfitting", "overfitting"),
        ("plateau at chance", "plateau"),
    ],
)
def test_the_higher_the_sensitivity_the_more_is_found(form: str, kind: str) -> None:
    runs = [ill_run(form, seed, points=60).history() for seed in range(40)]
    counts = [sum(kind in serious(run, level) for run in runs) for level in LEVELS]
    assert counts[0] <= counts[1] <= counts[2]
    assert counts[0] < counts[2]


@pytest.mark.slow
def test_the_higher_the_sensitivity_the_more_healthy_runs_are_flagged() -> None:
    runs = [healthy_run(seed, PLAIN, points=60).history() for seed in range(60)]
    counts = [sum(bool(serious(run, level)) for run in runs) for level in LEVELS]
    assert counts[0] <= counts[1] <= counts[2]
