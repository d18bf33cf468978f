"""Finds the run that an earlier import made of the same log.

In: a `RunHistory`, and the runs of an experiment. Out: the run that is it already, if there is one. Promised: the same
log is one run, also after it was moved; two logs that are both there are two runs, even where every number is equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from mlflow import MlflowClient

from mlflow_stability.tracking.store_trouble import store_trouble
from mlflow_stability.vocabulary.run_history import RunHistory

# Not `stability.*`: those tags say that a run was recorded by us, and most imported ones were not.
HASH, STATE, SOURCE = "imported.hash", "imported.state", "imported.from"
TIMES, COUNTED = "imported.times", "counted"
"""A log without times: MLflow needs some, which say nothing of how fast the training was."""
WHOLE = "whole"
LONGEST_SOURCE = 5000
_MOST_ALIKE = 1000


@dataclass(frozen=True, slots=True)
class EarlierImport:
    """A run that an import made, or began to make."""

    run_id: str
    source: str
    """Where it was read from."""
    whole: bool
    """False: its import was killed."""


class EarlierImports:
    """What one experiment has been given so far."""

    def __init__(self, client: MlflowClient, experiment: str) -> None:
        self._client, self._experiment = client, experiment
        self._taken: dict[str, str] = {}
        """Of each run that stands for a log by now, the place of that log."""

    def of(self, history: RunHistory, content: str) -> EarlierImport | None:
        """The run that this history is already: read from the same place, else from one where nothing is any more."""
        place = source_of(history)
        with store_trouble("look for an earlier import"):
            runs = self._client.search_runs([self._experiment], f"tags.`{HASH}` = '{content}'", max_results=_MOST_ALIKE)
        alike = [
            EarlierImport(str(run.info.run_id), run.data.tags.get(SOURCE, ""), run.data.tags.get(STATE, "") == WHOLE)
            for run in runs
        ]
        same = [each for each in alike if self._taken.get(each.run_id, each.source) == place]
        gone = [each for each in alike if each.run_id not in self._taken and not _is_there(each.source)]
        found = next(iter(same or gone), None)
        if found is not None:
            self.stands_for(found.run_id, history)
        return found

    def stands_for(self, run_id: str, history: RunHistory) -> None:
        """From now on this run is that log, and no other one that is like it."""
        self._taken[run_id] = source_of(history)


def source_of(history: RunHistory) -> str:
    """Where a run was read from, whatever the directory it was read in."""
    return str(Path(history.source).absolute())[:LONGEST_SOURCE]


def content_hash(history: RunHistory) -> str:
    """What tells runs apart: everything that was logged, and nothing of where it was found."""
    content = blake2b(digest_size=16)
    for metric in sorted(history.metrics, key=lambda each: each.name):
        series = metric.series
        content.update(repr((metric.name, len(series))).encode("utf-8", "surrogatepass"))
        values = np.where(np.isnan(series.values), np.nan, series.values)  # all not-a-numbers are one
        for column in (series.steps, values, series.attempts, series.times):
            content.update(np.ascontiguousarray(column).tobytes())
    facts = (sorted(history.params.items()), sorted(history.tags.items()), history.outcome)
    content.update(repr(facts).encode("utf-8", "surrogatepass"))
    return content.hexdigest()


def _is_there(source: str) -> bool:
    try:
        return Path(source).exists()
    except (OSError, ValueError):  # a path of another system
        return False
