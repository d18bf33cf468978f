"""Losses that begin far above chance level, or never get below it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of

from mlflow_stability.curves.curves import run_curves
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.first_look.loss_function import AboveChanceRule, ChanceFacts
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.text.metric_names import Meaning

CHANCE = math.log(64)


def findings_of(losses: np.ndarray, chance: float = CHANCE, name: str = "chance_loss") -> list[Finding]:
    metrics = (
        metric_of("loss", losses, meaning=Meaning("loss", is_known=True)),
        metric_of(name, [chance, chance], steps=[2, 3], meaning=Meaning(name, is_known=True)),
    )
    return AboveChanceRule().find(run_curves(run_of(*metrics)))


def test_a_loss_that_falls_from_far_above_to_chance_level_is_a_warning() -> None:
    (finding,) = findings_of(falling(400, first=20.5, last=4.2, noise=0.005))
    assert finding.severity is Severity.WARNING
    assert isinstance(finding.facts, ChanceFacts)
    assert (finding.facts.classes, finding.facts.is_stuck) == (64, True)
    assert finding.message.startswith("The loss is 4.25 at the end, no better than chance level (4.16 for 64 classes)")


@pytest.mark.parametrize(("level", "named"), [(CHANCE, True), (1.2 * CHANCE, False)])
def test_a_plateau_at_the_recorded_chance_level_is_attributed_to_guessing(level: float, named: bool) -> None:
    losses = level * np.exp(np.random.default_rng(0).normal(0, 0.004, 400))
    metrics = (
        metric_of("loss", losses, meaning=Meaning("loss", is_known=True)),
        metric_of("chance_loss", [CHANCE, CHANCE], steps=[2, 3], meaning=Meaning("chance_loss", is_known=True)),
    )
    diagnosis = diagnosis_of(run_of(*metrics))
    assert diagnosis.outcome == "stuck"
    assert (diagnosis.cause is not None and diagnosis.cause.name == "guessing") is named


def test_a_first_loss_far_above_chance_level_is_only_mentioned_where_the_model_learnt() -> None:
    (finding,) = findings_of(falling(400, first=20.5, last=1.4))
    assert finding.severity is Severity.INFO
    assert finding.message.endswith("times chance level (4.16 for 64 classes).")


def test_a_loss_that_stays_far_above_chance_level_is_a_warning_however_fast_it_falls() -> None:
    (finding,) = findings_of(falling(400, first=9000.0, last=20.0))
    assert finding.severity is Severity.WARNING
    assert "times chance level (4.16 for 64 classes); it is 50.1 at the end" in finding.message
    (finding,) = findings_of(np.geomspace(9000.0, 5.0, 400))
    assert finding.severity is Severity.INFO


def test_two_classes_at_chance_level_are_only_mentioned() -> None:
    (finding,) = findings_of(falling(400, first=0.7, last=0.69, noise=0.005), math.log(2))
    assert finding.severity is Severity.INFO


@pytest.mark.parametrize("losses", [falling(400, first=4.3, last=1.4), falling(150, first=4.2, last=4.15)])
def test_a_falling_loss_and_a_short_run_are_not_reported(losses: np.ndarray) -> None:
    assert findings_of(losses) == []


def test_a_squared_error_that_never_gets_below_the_variance_of_its_targets_is_a_warning() -> None:
    (finding,) = findings_of(falling(400, first=1.4, last=0.51, noise=0.005), 0.5, "target_variance")
    assert finding.severity is Severity.WARNING
    assert isinstance(finding.facts, ChanceFacts)
    assert (finding.facts.classes, finding.facts.is_stuck) == (0, True)
    assert "no better than the variance of the targets (0.5)" in finding.message


def test_a_squared_error_that_falls_from_far_above_the_variance_of_its_targets_is_not_reported() -> None:
    assert findings_of(falling(400, first=9.0, last=0.1), 0.5, "target_variance") == []


def test_a_squared_error_that_is_still_falling_where_it_reaches_the_variance_of_its_targets_is_not_reported() -> None:
    noise = np.exp(np.random.default_rng(1).normal(0, 0.15, 400))
    assert findings_of(np.linspace(12.0, 4.4, 400) * noise, 4.4, "target_variance") == []
    stuck = np.concatenate([np.linspace(12.0, 4.7, 200), np.full(200, 4.7)])
    (finding,) = findings_of(stuck * noise, 4.4, "target_variance")
    assert finding.severity is Severity.WARNING


def test_each_of_two_trainings_has_a_chance_level_of_its_own() -> None:
    curves: dict[tuple[str, str], tuple[np.ndarray, int]] = {
        ("loss", ""): (falling(400, first=2.0, last=0.1, noise=0.005), 1),
        ("chance_loss", ""): (np.full(2, math.log(8)), 2),
        ("loss", "track_1"): (np.full(400, CHANCE), 401),
        ("chance_loss", "track_1"): (np.full(2, CHANCE), 402),
    }
    metrics = [
        metric_of(
            f"{name}@{at}", values, steps=range(first, first + len(values)), meaning=Meaning(name, at, is_known=True)
        )
        for (name, at), (values, first) in curves.items()
    ]
    findings = AboveChanceRule().find(run_curves(replace(run_of(*metrics), format="recorded")))
    assert [(finding.where.place, finding.start) for finding in findings] == [("track_1", 401)]
