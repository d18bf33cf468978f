"""What is said of runs whose only findings are mistakes in the set-up."""

from __future__ import annotations

import numpy as np
from diagnosis.histories import falling, metric_of, run_of

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import Action
from mlflow_stability.vocabulary.text.metric_names import Meaning

COUNT = 200


def test_a_run_that_is_only_clipped_too_much_says_what_to_change() -> None:
    curves = {
        "loss": falling(COUNT),
        "grad_norm": np.exp(np.random.default_rng(0).normal(0, 0.1, COUNT)),
        "grad_norm_clipped": np.full(COUNT, 0.001),
        "learning_rate": np.full(COUNT, 0.1),
        "update_norm": np.full(COUNT, 0.001),
        "update_ratio": np.full(COUNT, 1e-5),
    }
    history = run_of(*(metric_of(name, curve, meaning=Meaning(name, known=True)) for name, curve in curves.items()))
    diagnosis = diagnosis_of(history)
    assert [finding.kind for finding in diagnosis.findings] == ["clipping_strong"]
    assert diagnosis.verdict.startswith("Check the set-up: too strong a clipping at step ")
    assert diagnosis.remedies[0].action is Action.RAISE_CLIPPING_THRESHOLD
