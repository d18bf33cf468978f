"""Says how a recording ended, and which status its run gets.

In: the closing record, if there is one, and what the run says of itself. Out: an outcome and a status, or None to leave
the run as it is. Pure, so that the whole table can be tested.
"""

from __future__ import annotations

from mlflow_stability.vocabulary.run.milestone import Closing
from mlflow_stability.vocabulary.run.outcome import RUN_STATUS

_ENDED = frozenset({"FINISHED", "FAILED", "KILLED"})


def silent_end(out_of_memory: bool, step: int, time: float) -> Closing:
    """The closing of a process that wrote none."""
    if out_of_memory:
        return Closing("out_of_memory", "killed by the system: out of memory", step, time)
    return Closing("killed", "process ended without notice: killed by a signal, or os._exit()", step, time)


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
