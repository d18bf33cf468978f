"""Words for how a process ended."""

from __future__ import annotations

_ENDED = {
    "running": "is still running",
    "finished": "finished",
    "crashed": "crashed",
    "exited": "exited with an error status",
    "stopped": "was stopped on purpose",
    "out_of_memory": "ran out of memory",
    "interrupted": "was interrupted",
    "killed": "was killed",
    "unknown": "ended in an unknown way",
}


def process_ended(outcome: str) -> str:
    """``The process was killed``, for each outcome, for a run that is not over, and for a status of another tool."""
    other = f"ended as {outcome.replace('_', ' ')}"
    return f"The process {_ENDED.get(outcome, other)}"
