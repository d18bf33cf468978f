from __future__ import annotations

from mlflow_stability.diagnosis.verdict.verdict import verdict_of
from mlflow_stability.vocabulary.result.diagnosis import CurveReading
from mlflow_stability.vocabulary.result.episode import Episode
from mlflow_stability.vocabulary.result.event import Severity

READING = CurveReading("loss", "", 500, 1, 500, 2.0, 1.0, 0.9, 480)


def episode(kind: str, step: int, severity: Severity, times: int = 1) -> Episode:
    return Episode(kind, severity, step, step, step, f"{kind} at step {step}.", times, recovered=True)


def test_a_training_that_was_set_back_is_said_to_have_gone_on() -> None:
    found = [episode("divergence", 200, Severity.CRITICAL), episode("rollback", 210, Severity.INFO)]
    said = verdict_of("unstable", found, [READING], 500)
    assert (
        said
        == "Unstable: a divergence at step 200; rolled back once and continued; loss fell from 2 to 1 in 500 steps."
    )


def test_it_is_said_how_often() -> None:
    found = [episode("divergence", 200, Severity.CRITICAL), episode("rollback", 210, Severity.INFO, 3)]
    assert "rolled back 3 times and continued" in verdict_of("unstable", found, [READING], 500)
