"""Finds runs by their names, by the beginning of their ids, or by their time.

In: what somebody typed, and where runs live. Out: the runs that it may mean, newest first. Guarantees: deleted runs and
reports of comparisons are not among them; all experiments are searched; no metric is read.
"""

from __future__ import annotations

import re

from mlflow import MlflowClient
from mlflow.entities import Run, ViewType

from mlflow_stability.tracking.read.run_search import searched_runs
from mlflow_stability.tracking.store.reachable_client import answering_client
from mlflow_stability.tracking.store.store_errors import store_trouble
from mlflow_stability.vocabulary.run import FoundRun

MOST, MOST_ALIKE = 50, 1000
_BEGINNING = re.compile(r"[0-9a-fA-F]{1,32}")


def runs_called(text: str, tracking_uri: str | None = None) -> list[FoundRun]:
    """The runs of this name; where there are none, those whose id begins so."""
    client = answering_client(tracking_uri)
    found = _of_name(client, text)
    if not found and _BEGINNING.fullmatch(text):
        found = _search(client, f"attributes.run_id LIKE '{text.lower()}%'")
    return found


def _of_name(client: MlflowClient, name: str) -> list[FoundRun]:
    quote = '"' if "'" in name else "'"
    if quote not in name:
        return _search(client, f"attributes.run_name = {quote}{name}{quote}")
    # MLflow's filters know no escapes; `_` stands for any character, so other names are found as well.
    pattern = name.replace("'", "_").replace('"', "_")
    found = _search(client, f"attributes.run_name LIKE '{pattern}'", MOST_ALIKE)
    return [each for each in found if each.name == name][:MOST]


def newest_runs(count: int, tracking_uri: str | None = None) -> list[FoundRun]:
    """The runs that were started last."""
    return _search(answering_client(tracking_uri), "", count)


def _search(client: MlflowClient, condition: str, most: int = MOST) -> list[FoundRun]:
    names = _experiments(client)
    if not names:
        return []
    return [
        _found(run, names)
        for run in searched_runs(client, list(names), condition, "search the runs of all experiments", most)
    ]


def _experiments(client: MlflowClient) -> dict[str, str]:
    names: dict[str, str] = {}
    token: str | None = None
    while True:
        with store_trouble("list the experiments"):
            page = client.search_experiments(ViewType.ACTIVE_ONLY, page_token=token)
        names |= {str(each.experiment_id): str(each.name) for each in page}
        token = page.token
        if not token:
            return names


def _found(run: Run, names: dict[str, str]) -> FoundRun:
    info = run.info
    experiment = names.get(str(info.experiment_id), str(info.experiment_id))
    started = (info.start_time or 0) / 1000
    return FoundRun(str(info.run_id), str(info.run_name or ""), experiment, str(info.status), started)
