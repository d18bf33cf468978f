"""Sentences can be reworded without any diagnosis changing: none is read."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of
from findings import changed
from golden.cases import EXPERIMENT, run_names
from zoo.curves.ill import FORMS, NON_FINITE, ill_run

from mlflow_stability import Diagnosis
from mlflow_stability.analysis.diagnose import history_of
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.kinds.loss.nonfinite import NonFiniteFacts
from mlflow_stability.kinds.reported.autopilot import EarlyStopFacts
from mlflow_stability.kinds.reported.broken_steps import NanOriginFacts
from mlflow_stability.kinds.reported.rollback import GaveUp, GiveUpFacts
from mlflow_stability.vocabulary.facts import Facts, classes_of_facts
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import RunHistory


def replace_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all sentences of facts nonsense, each another one."""
    numbers = count()

    def nonsense(_facts: Facts, *_: Any) -> str:
        return f"Wug {next(numbers)}: blick. Dax"

    for facts in classes_of_facts().values():
        monkeypatch.setattr(facts, "sentence", nonsense)
    monkeypatch.setattr(EarlyStopFacts, "statement", nonsense)
    monkeypatch.setattr(NanOriginFacts, "statement", property(nonsense))
    monkeypatch.setattr(NonFiniteFacts, "last_finite_clause", property(nonsense))


def reworded(history: RunHistory) -> RunHistory:
    """The history, its events in words that mean nothing."""
    if history.events is None:
        return history
    events = (changed(event, message=f"Fep {number}") for number, event in enumerate(history.events))
    return replace(history, events=tuple(events))


def concluded(diagnosis: Diagnosis) -> dict[str, Any]:
    """What a diagnosis concludes, without its sentences."""
    return {
        "outcome": diagnosis.outcome,
        "cause": None if diagnosis.cause is None else (diagnosis.cause.name, diagnosis.cause.certainty),
        "remedies": diagnosis.remedies,
        "findings": [
            (
                episode.kind,
                episode.severity,
                (episode.start, episode.peak, episode.end, episode.recovered, episode.attempt),
                (episode.metric, episode.place, episode.count, episode.spikes),
                episode.remedies,
                None if episode.cause is None else (episode.cause.name, episode.cause.step, episode.cause.remedies),
            )
            for episode in diagnosis.findings
        ],
    }


def check_that_wording_does_not_matter(history: RunHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    before = concluded(diagnosis_of(history))
    with monkeypatch.context() as patch:
        replace_sentences(patch)
        diagnosis = diagnosis_of(reworded(history))
    assert concluded(diagnosis) == before


@pytest.mark.parametrize("name", run_names())
def test_no_conclusion_about_a_recorded_run_depends_on_wording(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_wording_does_not_matter(history_of(Path(EXPERIMENT) / name), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("form", [*FORMS, *NON_FINITE])
def test_no_conclusion_about_a_log_depends_on_wording(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_wording_does_not_matter(ill_run(form, 0).history(), monkeypatch)


def test_sentences_are_replaced_in_these_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_sentences(monkeypatch)
    rescued = diagnosis_of(reworded(history_of(EXPERIMENT / "rescue")))
    assert [finding.message[:3] for finding in rescued.findings if finding.kind == "rollback"] == ["Fep"]
    ill = diagnosis_of(ill_run("spike of several points", 0).history())
    assert any("Wug" in finding.message for finding in ill.findings)


def test_a_training_that_the_autopilot_ended_says_so_in_any_wording(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = GiveUpFacts(GaveUp.NO_ROLLBACK, "The rollbacks did not help.", 290, 3, ended_training=True)
    replace_sentences(monkeypatch)
    losses = np.concatenate([falling(300), np.full(10, np.nan)])
    run = run_of(metric_of("loss", losses), events=[Finding.at(facts, 310, Severity.CRITICAL)])
    verdict = diagnosis_of(run).verdict
    assert "TrainingDiverged ended the training at step 310: The rollbacks did not help." in verdict
