"""Finds what a run says of the batch of one step: the file that it is saved in, and what running it again has shown.

In: a run and the attempts of its training. Out: by start of the training and step, the event that tells of the batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from mlflow_stability.diagnosis.findings.attempt_span import RunAttempts
from mlflow_stability.vocabulary.result import Event
from mlflow_stability.vocabulary.run import RunHistory

KINDS = frozenset({"broken_batch", "spike_batch"})
SAVED = re.compile(r"Its tensors are saved in (?P<file>.+?\.pt)(?:, and in the run under stability/batches/)?\.$")
FINITE_AGAIN = re.compile(r"The model's output was finite both times.+?\.(?= Its tensors|$)")
"""How the sentence begins that says where to look instead of in the model."""


def batches_of(history: RunHistory, attempts: RunAttempts) -> Mapping[tuple[int, int], Event]:
    """The first event about each batch."""
    found: dict[tuple[int, int], Event] = {}
    for each in history.events or ():
        if each.kind in KINDS:
            found.setdefault((attempts.starts.get(each.attempt, each.attempt), each.step), each)
    return found


def file_of(event: Event | None) -> str:
    """Where the batch is saved; empty where it is not."""
    told = None if event is None else SAVED.search(event.message)
    return "" if told is None else told["file"]


def finite_again(event: Event | None) -> str:
    """What to check where the model's output was finite when the batch was run again; empty where it was not."""
    told = None if event is None else FINITE_AGAIN.search(event.message)
    return "" if told is None else told[0]
