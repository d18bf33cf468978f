"""Finds what a run says of the batch of one step: the file that it is saved in, and what running it again has shown.

In: a run and the attempts of its training. Out: by start of the training and step, the event that tells of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlflow_stability.diagnosis.findings.attempt_span import RunAttempts
from mlflow_stability.kinds.reported.broken_steps import BatchFacts, BrokenBatchFacts, Rerun
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import RunHistory

KINDS = frozenset({"broken_batch", "spike_batch"})


def batches_of(history: RunHistory, attempts: RunAttempts) -> Mapping[tuple[int, int], Finding]:
    """The first event about each batch."""
    found: dict[tuple[int, int], Finding] = {}
    for each in history.events or ():
        if each.kind in KINDS:
            found.setdefault((attempts.starts.get(each.attempt, each.attempt), each.step), each)
    return found


def file_of(event: Finding | None) -> str:
    """Where the batch is saved; empty where it is not."""
    facts = None if event is None else event.facts
    return facts.saved_in if isinstance(facts, BatchFacts) else ""


def finite_again(event: Finding | None) -> str:
    """What to check where the model's output was finite when the batch was run again; empty where it was not."""
    facts = None if event is None else event.facts
    if not isinstance(facts, BrokenBatchFacts) or facts.rerun is not Rerun.AFTER_THE_MODEL:
        return ""
    return facts.rerun_words
