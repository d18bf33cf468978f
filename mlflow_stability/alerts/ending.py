"""The event that a training's end is, where it is one."""

from __future__ import annotations

from mlflow_stability.kinds.reported.endings import WAYS_TO_END, EndFacts
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import Closing

_ENDINGS = {"crashed": "crashed", "exited": "crashed", "killed": "killed", "out_of_memory": "out_of_memory"}
"""The event type of each outcome that is one; who stops a training with Ctrl-C knows it already."""
_REMEDIES = {each.kind: each.remedies for each in WAYS_TO_END}


def ending_event(closing: Closing, last_step: int, time: float) -> Finding | None:
    """The event of a bad end; None for a good one. `time`: when, if the closing does not say."""
    kind = _ENDINGS.get(closing.outcome)
    if kind is None:
        return None
    facts, when = EndFacts(closing.outcome, closing.detail), closing.time or time
    return Finding.at(facts, last_step, Severity.CRITICAL, kind=kind, remedies=_REMEDIES[kind], time=when)
