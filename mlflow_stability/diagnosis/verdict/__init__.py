"""One word and one sentence about a run."""

from __future__ import annotations

from mlflow_stability.diagnosis.verdict.coverage import limits_of, loss_that_stopped, single_loss
from mlflow_stability.diagnosis.verdict.final_loss import final_loss, last_part
from mlflow_stability.diagnosis.verdict.finding_phrases import bare_noun_of, definite_noun_of, listed, noun_of
from mlflow_stability.diagnosis.verdict.verdict import (
    deciding_of,
    end_on_purpose,
    ended_by_autopilot,
    outcome_of,
    reason_of_end,
    title_of,
    training_outcome,
    verdict_of,
)

__all__ = [
    "bare_noun_of",
    "deciding_of",
    "definite_noun_of",
    "end_on_purpose",
    "ended_by_autopilot",
    "final_loss",
    "last_part",
    "limits_of",
    "listed",
    "loss_that_stopped",
    "noun_of",
    "outcome_of",
    "reason_of_end",
    "single_loss",
    "title_of",
    "training_outcome",
    "verdict_of",
]
