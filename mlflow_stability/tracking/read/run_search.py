"""Find runs: those of an experiment, or by name, id or time, without reading their metrics.

Guarantees: runs come newest first, and no page is fetched that is not needed; deleted runs and runs that hold a
comparison are left out.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator, Sequence

from mlflow import MlflowClient
from mlflow.entities import Experiment, Run, ViewType

from mlflow_stability.errors import RunNotFoundError
from mlflow_stability.tracking.address import strip_credentials
from mlflow_stability.tracking.client import answering_client, experiment_by_id, store_trouble
from mlflow_stability.tracking.tag_names import COMPARISON
from mlflow_stability.vocabulary.run import FoundRun, RunHead

PAGE, MAX_PAGE = 50, 1000
"""Number of runs of the first page and of later ones at most: each comes with all its parameters, tags and values."""
QUICK_SECONDS = 3.0
"""After a page that took less, twice as many runs are asked for: a server sorts all runs for each page."""
MAX_NAMED, MAX_ALIKE = 50, 1000  # number of runs of one name, and of runs whose names are like it, at most
_ENDED = frozenset({"FINISHED", "FAILED", "KILLED"})
_ID_PREFIX = re.compile(r"[0-9a-fA-F]{1,32}")


def runs_of_experiment(
    experiment: str, condition: str = "", tracking_uri: str | None = None, most: int | None = None
) -> list[RunHead]:
    """Return the newest `most` runs of an experiment, or all, that meet a condition such as ``params.lr = '0.1'``."""
    client = answering_client(tracking_uri)
    experiment_id = _experiment(client, experiment).experiment_id
    runs = _search(client, [experiment_id], condition, f"search the runs of experiment {experiment}", most)
    return [_head(run, client) for run in runs]


def head_of(run_id: str, tracking_uri: str | None = None) -> RunHead:
    return head_by(answering_client(tracking_uri), run_id)


def head_by(client: MlflowClient, run_id: str) -> RunHead:
    with store_trouble(f"read run {run_id}"):
        return _head(client.get_run(run_id), client)


def runs_called(text: str, tracking_uri: str | None = None) -> list[FoundRun]:
    """Return the runs of this name in all experiments; without any, those whose id begins so."""
    client = answering_client(tracking_uri)
    quote = '"' if "'" in text else "'"
    if quote not in text:
        runs = _search_all(client, f"attributes.run_name = {quote}{text}{quote}")
    else:
        # MLflow's filters have no escapes; `_` matches any character, so other names are found as well.
        pattern = text.replace("'", "_").replace('"', "_")
        alike = _search_all(client, f"attributes.run_name LIKE '{pattern}'", MAX_ALIKE)
        runs = [run for run in alike if run.name == text][:MAX_NAMED]
    if not runs and _ID_PREFIX.fullmatch(text):
        runs = _search_all(client, f"attributes.run_id LIKE '{text.lower()}%'")
    return runs


def newest_runs(count: int, tracking_uri: str | None = None) -> list[FoundRun]:
    """Return the runs of all experiments that were started last."""
    return _search_all(answering_client(tracking_uri), "", count)


def _search_all(client: MlflowClient, condition: str, most: int = MAX_NAMED) -> list[FoundRun]:
    experiments: dict[str, str] = {}
    token: str | None = ""
    while token is not None:
        with store_trouble("list the experiments"):
            page = client.search_experiments(ViewType.ACTIVE_ONLY, page_token=token or None)
        experiments |= {str(experiment.experiment_id): str(experiment.name) for experiment in page}
        token = page.token or None
    if not experiments:
        return []
    return [
        FoundRun(
            str(run.info.run_id),
            str(run.info.run_name or ""),
            experiments.get(str(run.info.experiment_id), str(run.info.experiment_id)),
            str(run.info.status),
            (run.info.start_time or 0) / 1000,
        )
        for run in _search(client, list(experiments), condition, "search the runs of all experiments", most)
    ]


def _search(
    client: MlflowClient, experiments: Sequence[str], condition: str, doing: str, most: int | None = None
) -> Iterator[Run]:
    """Yield runs page by page, newest first."""
    token: str | None = None
    size, count = PAGE, 0
    while most is None or count < most:
        began = time.monotonic()
        limit = size if most is None else min(size, most - count + 1)  # one may be a comparison
        order = ["attributes.start_time DESC"]
        with store_trouble(doing):
            page = client.search_runs(list(experiments), condition, ViewType.ACTIVE_ONLY, limit, order, token)
        if time.monotonic() - began < QUICK_SECONDS:
            size = min(2 * size, MAX_PAGE)
        for run in page:
            if COMPARISON not in run.data.tags and (most is None or count < most):
                count += 1
                yield run
        token = page.token
        if not token:
            return


def _experiment(client: MlflowClient, name: str) -> Experiment:
    """Return an experiment by its name, else by its id."""
    with store_trouble(f"look for experiment {name}"):
        experiment = client.get_experiment_by_name(name) or experiment_by_id(client, name)
        if experiment is None:
            names = [other.name for other in client.search_experiments(ViewType.ACTIVE_ONLY, max_results=6)]
            available = f" Available: {', '.join(names[:5])}{', …' if len(names) > 5 else ''}." if names else ""
            raise RunNotFoundError(f"No experiment {name!r}.{available}")
    if experiment.lifecycle_stage == "deleted":
        raise RunNotFoundError(
            f"Experiment {name!r} was deleted. Restore it with `mlflow experiments restore -x "
            f"{experiment.experiment_id}` before MLflow's garbage collection."
        )
    return experiment


def _head(run: Run, client: MlflowClient) -> RunHead:
    """Return a run with a hash of its state; the last step of a metric grows even where its value stays."""
    info, data = run.info, run.data
    status = [strip_credentials(client.tracking_uri), info.status, info.end_time, info.lifecycle_stage, info.run_name]
    try:
        last = sorted((metric.key, metric.step, metric.timestamp, metric.value) for metric in data.to_proto().metrics)
    except TypeError:  # NumPy integers, which SQLite returns as bytes, do not fit into MLflow's messages
        last = sorted((key, 0, 0, value) for key, value in data.metrics.items())
    content = [last, sorted(data.params.items()), sorted(data.tags.items())]
    state = hashlib.sha256(json.dumps([status, content], default=str).encode()).hexdigest()
    return RunHead(str(info.run_id), str(info.run_name or info.run_id), info.status in _ENDED, state)
