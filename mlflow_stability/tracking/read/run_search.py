"""Finds the runs of an experiment, and looks at runs without reading their metrics.

In: the name or id of an experiment, a filter in MLflow's syntax, and how many runs are wanted; or run ids. Out: a
`RunHead` each, the newest first. Guarantees: as many as are wanted, however many pages the store gives them in, and no
page more; what cannot be found is told in one sentence; reports that we put into an experiment are no runs of it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence

from mlflow import MlflowClient
from mlflow.entities import Experiment, Run, ViewType

from mlflow_stability.errors import RunNotFoundError
from mlflow_stability.tracking.store.address import strip_credentials
from mlflow_stability.tracking.store.reachable_client import answering_client, experiment_by_id
from mlflow_stability.tracking.store.store_errors import store_trouble
from mlflow_stability.tracking.tag_names import COMPARISON
from mlflow_stability.vocabulary.run import RunHead

PAGE, LARGEST_PAGE = 50, 1000
"""Runs that are asked for at first and at most: each comes with all of its parameters, tags and last values."""
QUICK_PAGE = 3.0
"""Seconds; after a page that took less, twice as many runs are asked for: for each page a server sorts all runs."""
LARGEST_STORE = 1 << 62
"""More runs than any store has."""
_OVER = frozenset({"FINISHED", "FAILED", "KILLED"})


def runs_of_experiment(
    experiment: str, condition: str = "", tracking_uri: str | None = None, most: int | None = None
) -> list[RunHead]:
    """The newest `most` runs of an experiment, or all, that meet a condition such as ``params.lr = '0.1'``."""
    client = answering_client(tracking_uri)
    found = _experiment(client, experiment)
    runs = searched_runs(client, [found.experiment_id], condition, f"search the runs of experiment {experiment}", most)
    return [_head(run, client) for run in runs]


def searched_runs(
    client: MlflowClient, experiments: Sequence[str], condition: str, what: str, most: int | None = None
) -> Iterator[Run]:
    """Runs that are asked for page by page, the newest first; no page is asked for that is not needed."""
    token: str | None = None
    size, left = PAGE, LARGEST_STORE if most is None else most
    while left > 0:
        began = time.monotonic()
        with store_trouble(what):
            page = client.search_runs(
                list(experiments),
                condition,
                ViewType.ACTIVE_ONLY,
                min(size, left + 1),  # one may be a report of ours
                ["attributes.start_time DESC"],
                token,
            )
        if time.monotonic() - began < QUICK_PAGE:
            size = min(2 * size, LARGEST_PAGE)
        for run in page:
            if left > 0 and COMPARISON not in run.data.tags:
                left -= 1
                yield run
        token = page.token
        if not token:
            return


def head_of(run_id: str, tracking_uri: str | None = None) -> RunHead:
    """One run, by its id."""
    return head_by(answering_client(tracking_uri), run_id)


def head_by(client: MlflowClient, run_id: str) -> RunHead:
    """One run, by its id, for those who have a client."""
    with store_trouble(f"read run {run_id}"):
        return _head(client.get_run(run_id), client)


def _experiment(client: MlflowClient, asked: str) -> Experiment:
    """By name; else by id, which are digits."""
    with store_trouble(f"look for experiment {asked}"):
        found = client.get_experiment_by_name(asked) or experiment_by_id(client, asked)
        if found is None:
            names = [each.name for each in client.search_experiments(ViewType.ACTIVE_ONLY, max_results=6)]
            there = f" Available: {', '.join(names[:5])}{', …' if len(names) > 5 else ''}." if names else ""
            raise RunNotFoundError(f"No experiment {asked!r}.{there}")
    if found.lifecycle_stage == "deleted":
        raise RunNotFoundError(
            f"Experiment {asked!r} was deleted. Restore it with `mlflow experiments restore -x "
            f"{found.experiment_id}` before MLflow's garbage collection."
        )
    return found


def _head(run: Run, client: MlflowClient) -> RunHead:
    """With the last point of each metric, whose step grows also where the value stays."""
    info, data = run.info, run.data
    known = [strip_credentials(client.tracking_uri), info.status, info.end_time, info.lifecycle_stage, info.run_name]
    try:
        last = sorted((each.key, each.step, each.timestamp, each.value) for each in data.to_proto().metrics)
    except TypeError:  # NumPy's integers, of which SQLite makes blobs that no message of MLflow holds
        last = sorted((key, 0, 0, value) for key, value in data.metrics.items())
    said = [last, *(sorted(each.items()) for each in (data.params, data.tags))]
    state = hashlib.sha256(json.dumps([known, said], default=str).encode()).hexdigest()
    return RunHead(str(info.run_id), str(info.run_name or info.run_id), info.status in _OVER, state)
