"""What is said of runs whose only findings are mistakes in the set-up, or a slow machine."""

from __future__ import annotations

import numpy as np
from diagnosis.histories import falling, metric_of, run_of

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.diagnosis.verdict import title_of
from mlflow_stability.kinds.catalog import OF_HARDWARE, OF_SETUP
from mlflow_stability.kinds.hardware.speed import ThroughputFacts
from mlflow_stability.kinds.optimizer.clipping_and_decay import StrongDecayFacts
from mlflow_stability.reports.run_phrases import headline
from mlflow_stability.vocabulary.result import Action, Finding, Severity
from mlflow_stability.vocabulary.text import Meaning

COUNT = 200
DECAY = StrongDecayFacts(10.0, 0.003)
SLOW = ThroughputFacts(100.0, 300.0, 0.5, "samples_per_second", found_first=404)


def test_a_run_that_is_only_clipped_too_much_says_what_to_change() -> None:
    curves = {
        "loss": falling(COUNT),
        "grad_norm": np.exp(np.random.default_rng(0).normal(0, 0.1, COUNT)),
        "grad_norm_clipped": np.full(COUNT, 0.001),
        "learning_rate": np.full(COUNT, 0.1),
        "update_norm": np.full(COUNT, 0.001),
        "update_ratio": np.full(COUNT, 1e-5),
    }
    history = run_of(*(metric_of(name, curve, meaning=Meaning(name, is_known=True)) for name, curve in curves.items()))
    diagnosis = diagnosis_of(history)
    assert [finding.kind for finding in diagnosis.findings] == ["clipping_strong"]
    assert diagnosis.verdict.startswith("Check the set-up: too strong a clipping; ")
    title, sentence = headline(diagnosis)
    assert title == "Check the set-up"
    assert sentence.startswith("too strong a clipping; ")
    assert diagnosis.remedies[0].action is Action.RAISE_CLIPPING_THRESHOLD


def test_only_mistakes_in_the_setup_have_a_title_of_their_own() -> None:
    assert {"above_chance", "clipping_strong"} <= OF_SETUP
    assert title_of("unstable", [Finding.at(DECAY, 1, Severity.WARNING)]) == "Check the set-up"
    assert title_of("unstable", [Finding.at(DECAY, 1, Severity.INFO)]) == "Unstable"


def test_a_run_that_only_became_slow_is_not_called_unstable() -> None:
    assert {"throughput_drop", "step_time_increase", "memory_pressure"} == OF_HARDWARE
    slow, decay = Finding.at(SLOW, 504, Severity.WARNING), Finding.at(DECAY, 1, Severity.WARNING)
    assert title_of("unstable", [slow]) == "Check the hardware"
    assert title_of("unstable", [slow, decay]) == "Check the set-up"
