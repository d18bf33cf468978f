"""Says how a recording ended, and which status its run gets.

In: the closing record, if there is one, and what the run says of itself. Out: an outcome and a status, or None to leave
the run as it is. Pure, so that the whole table can be tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from mlflow_stability.courier.process.rank_processes import RankEnd
from mlflow_stability.courier.sinks.run_summary import RunSummary
from mlflow_stability.kinds.reported.ranks import RankDied, RankDiedFacts
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.run import RUN_STATUS, Closing

_ENDED = frozenset({"FINISHED", "FAILED", "KILLED"})


def silent_end(out_of_memory: bool, step: int, time: float, journal_deleted: bool = False) -> Closing:
    """The closing of a process that wrote none, or whose journal was deleted before it did."""
    if out_of_memory:
        return Closing("out_of_memory", "killed by the system: out of memory", step, time)
    if journal_deleted:
        return Closing("unknown", f"the journal was deleted after step {step}; later steps are lost", step, time)
    return Closing("killed", "process ended without notice: killed by a signal, or os._exit()", step, time)


def rank_died(closing: Closing, story: RunSummary, ended: Sequence[RankEnd], *, restarts: bool) -> Finding | None:
    """What to say of the process of another rank that ended first, where the training did not end well.

    Ranks that end with the training, or that wait for one that hangs, are nothing to tell of. `restarts`: whether a
    launcher starts the job again, so that it says nothing bad of the training.
    """
    if not ended or closing.outcome in ("finished", "stopped"):
        return None
    when = datetime.fromtimestamp(ended[0].time, timezone.utc).strftime("%H:%M:%S UTC")
    facts = RankDiedFacts(tuple(each.name for each in ended), len(ended), when, ended[0].before)
    severity = Severity.INFO if restarts else Severity.WARNING
    return Finding.at(facts, story.last_step, severity, remedies=RankDied.remedies, time=ended[0].time)


def waits_for_process(closing: Closing, own_run: bool) -> bool:
    """Whether the run's status can only be told once the process is gone: MLflow's own exit may still set one."""
    return not own_run and closing.run_was_active


def status_to_set(closing: Closing, said_goodbye: bool, own_run: bool, status: str, others_live: bool) -> str | None:
    """The status that tells the truth; None where the run has it, or it is not ours to say."""
    true = RUN_STATUS.get(closing.outcome, "FAILED")
    if others_live or status == true:
        return None
    if own_run:
        return true
    if not closing.run_was_active:
        return None  # its owner had ended it before
    if status in _ENDED and (closing.outcome == "finished" or not said_goodbye):
        return None  # whoever ended it knew more than we do
    return true
