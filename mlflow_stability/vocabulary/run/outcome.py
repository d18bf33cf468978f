"""How a training can end, and the status that its MLflow run must have then."""

from __future__ import annotations

RUN_STATUS = {
    "finished": "FINISHED",
    "crashed": "FAILED",
    "exited": "FAILED",
    "stopped": "FAILED",
    "out_of_memory": "FAILED",
    "interrupted": "KILLED",
    "killed": "KILLED",
    "unknown": "KILLED",
}
"""The outcomes, as the tag ``stability.ended`` has them, with MLflow's word for each."""
