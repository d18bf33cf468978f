from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mlflow_stability.diagnosis.verdict.verdict import outcome_of, verdict_of
from mlflow_stability.vocabulary.result.diagnosis import CurveReading
from mlflow_stability.vocabulary.result.episode import Episode
from mlflow_stability.vocabulary.result.event import Severity

READING = CurveReading("loss", "", 500, 1, 500, 2.0, 1.0, 0.9, 480)


def episode(kind: str, step: int, severity: Severity, times: int = 1, **more: Any) -> Episode:
    return Episode(kind, severity, step, step, step, f"{kind} at step {step}.", times, **{"recovered": True, **more})


DIVERGED = episode("divergence", 200, Severity.CRITICAL)
BACK = episode("rollback", 210, Severity.INFO, evidence={"target": 190.0})


def outcome(found: list[Episode]) -> str:
    return outcome_of(found, [READING], "", measured=True)


def test_a_training_that_was_rolled_back_and_trained_on_has_recovered() -> None:
    found = [DIVERGED, BACK]
    assert outcome(found) == "recovered"
    assert verdict_of("recovered", found, [READING], 500) == (
        "Recovered: rolled back to step 190 after a divergence at step 200; loss fell from 2 to 1 in 500 steps."
    )


def test_a_noisy_loss_has_its_final_value_beside_its_course() -> None:
    noisy = replace(READING, volatility=0.2, change=-0.5)
    said = verdict_of("recovered", [DIVERGED, BACK], [noisy], 500)
    assert said.endswith("; loss (noisy) fell by 50.0% in 500 steps, final loss 1.")


def test_it_is_said_how_often() -> None:
    again = episode("rollback", 320, Severity.INFO, attempt=1, evidence={"target": 300.0})
    assert "rolled back 2 times, last to step 300, after" in verdict_of("recovered", [DIVERGED, BACK, again], [], 500)
    merged = episode("rollback", 210, Severity.INFO, 3, evidence={"target": 190.0})
    assert "rolled back 3 times after" in verdict_of("recovered", [DIVERGED, merged], [READING], 500)


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        (episode("give_up", 230, Severity.WARNING, recovered=None), "unstable"),
        (episode("gradient_explosion", 400, Severity.CRITICAL, recovered=False), "unstable"),
        (episode("divergence", 400, Severity.CRITICAL, recovered=False), "diverged"),
        (episode("loss_spike", 400, Severity.WARNING), "recovered"),
    ],
)
def test_a_rollback_that_did_not_help_is_no_recovery(later: Episode, expected: str) -> None:
    assert outcome([DIVERGED, BACK, later]) == expected


def test_trouble_that_passed_by_itself_is_no_recovery_of_ours() -> None:
    assert outcome([DIVERGED]) == "unstable"
