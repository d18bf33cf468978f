"""The verdict on a run whose data or loss function changed for good."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis.histories import falling, metric_of, run_of
from findings import at_step

from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.vocabulary.result import Severity

COUNT = 400

SAID = "The weights of step 101 give a loss of 24 where they gave 1: the data or the loss function changed at about"
CHANGED_AT = 200
EVIDENCE = {"onset": float(CHANGED_AT), "loss": 24.0, "level": 1.0}


def changed(after: np.ndarray, evidence: dict[str, float]) -> tuple[str, str]:
    losses = falling(COUNT)
    losses[CHANGED_AT:] = after * np.exp(np.random.default_rng(1).normal(0, 0.02, COUNT - CHANGED_AT))
    event = at_step(CHANGED_AT + 20, "data_changed", Severity.WARNING, f"{SAID} step {CHANGED_AT}.", evidence=evidence)
    diagnosis = diagnosis_of(run_of(metric_of("loss", losses), events=[event]))
    return diagnosis.outcome, diagnosis.verdict


def test_a_loss_that_falls_on_the_changed_data_did_not_diverge() -> None:
    outcome, verdict = changed(np.geomspace(24.0, 6.0, COUNT - CHANGED_AT), EVIDENCE)
    assert outcome == "unstable"
    assert verdict.startswith(
        f"Unstable: the data or the loss function changed at about step {CHANGED_AT}; loss rose from 1 to 24 and has "
        "fallen to 6"
    )
    assert verdict.endswith(" since.")


@pytest.mark.parametrize("evidence", [EVIDENCE, {"onset": float(CHANGED_AT)}])
def test_one_that_rises_on_it_or_of_which_nothing_is_known_did(evidence: dict[str, float]) -> None:
    outcome, verdict = changed(np.geomspace(24.0, 400.0, COUNT - CHANGED_AT), evidence)
    assert outcome == "diverged"
    assert verdict.startswith("Diverged: ")
