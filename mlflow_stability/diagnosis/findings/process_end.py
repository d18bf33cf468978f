"""Says how a training ended, where it did not end by itself.

In: a run's history. Out: an episode at its last step, if the process crashed, was killed or ran out of memory; none if
an event says so already, and none for a user who stopped it.
"""

from __future__ import annotations

from dataclasses import replace

from mlflow_stability.kinds.reported.endings import WAYS_TO_END
from mlflow_stability.vocabulary.facts import EndFacts
from mlflow_stability.vocabulary.result import Episode, Severity, Statement
from mlflow_stability.vocabulary.run import RunHistory

REMEDIES = {each.kind: each.remedies for each in WAYS_TO_END}
BAD = ("crashed", "killed", "out_of_memory")


def endings_of(history: RunHistory, last_step: int, attempt: int) -> list[Episode]:
    """The episode of a bad end."""
    kind = history.outcome
    if kind not in BAD or any(event.kind in BAD for event in history.events or ()):
        return []
    facts = EndFacts(kind, history.outcome_detail)
    ended = Episode(kind, Severity.CRITICAL, last_step, last_step, last_step, recovered=False, attempt=attempt)
    return [replace(ended, remedies=REMEDIES[kind], facts=facts, statements=(Statement(facts, last_step),))]
