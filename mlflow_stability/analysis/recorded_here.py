"""Finds our full record in the folder of a run, wherever that folder was copied to.

In: the history of a run in MLflow's file layout. Out: the same from its full record, where there is one. Promised:
neither MLflow nor torch is loaded.
"""

from __future__ import annotations

from pathlib import Path

from mlflow_stability.vocabulary.run_history import RunHistory

_RECORD = Path("artifacts", "stability", "record")


def from_full_record(history: RunHistory) -> RunHistory:
    """The history as it was recorded; unchanged where nothing of ours lies beside the metrics."""
    folder = Path(history.source)
    if history.format != "mlflow_files" or not (folder / _RECORD).is_dir():
        return history
    from mlflow_stability.tracking.recorded_history import RunFacts, recorded_folder, with_metrics_of_the_script

    facts = RunFacts(history.source, history.name, "", history.params, history.tags)
    recorded = recorded_folder(folder, facts)
    return history if recorded is None else with_metrics_of_the_script(recorded, history.metrics)
