"""Opens, tags and ends the run."""

from __future__ import annotations

from mlflow_stability.courier.run.finish import rank_died, silent_end, status_to_set, waits_for_process
from mlflow_stability.courier.run.run_opening import EarlierRecordings, installed_version, open_run
from mlflow_stability.courier.run.run_tags import RunTags

__all__ = [
    "EarlierRecordings",
    "RunTags",
    "installed_version",
    "open_run",
    "rank_died",
    "silent_end",
    "status_to_set",
    "waits_for_process",
]
