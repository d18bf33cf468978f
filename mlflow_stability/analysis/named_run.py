"""Finds the run that somebody meant by its name, by the beginning of its id, or by being the last.

In: what was typed, and where runs live as far as that was said. Out: a whole run id. Guarantees: one run, or an error
that lists those that it could be; a store that is only a folder of files is searched without MLflow.
"""

from __future__ import annotations

import re
import time
from difflib import get_close_matches
from pathlib import Path

from mlflow_stability.analysis.run_folder import store_folder
from mlflow_stability.errors import RunNotFoundError
from mlflow_stability.vocabulary.argument import or_list
from mlflow_stability.vocabulary.run import FoundRun
from mlflow_stability.vocabulary.text import visible

_RUN_ID = re.compile(r"[0-9a-fA-F]{32}")
MOST_LISTED, MOST_SHOWN = 8, 80
RECENT = 50
"""Runs whose names are compared with one that there is not."""


def run_called(text: str, tracking_uri: str | None = None) -> str | None:
    """The id of the run that this names; None where nothing is called so.

    Raises ``RunNotFoundError`` where it may mean several runs.
    """
    folder = store_folder(tracking_uri)
    if folder is not None:
        runs = _runs_in(folder)
        found = [each for each in runs if each.name == text]
        found = found or [each for each in runs if each.run_id.startswith(text.lower())]
    elif _has_no_store(tracking_uri):
        return None
    else:
        from mlflow_stability.tracking.read.run_search import runs_called

        found = runs_called(text, tracking_uri)
    if len(found) > 1:
        listed = "\n".join(f"  {_described(each)}" for each in found[:MOST_LISTED])
        more = f"\n  and {len(found) - MOST_LISTED} more" if len(found) > MOST_LISTED else ""
        raise RunNotFoundError(f"{text!r} may mean {len(found)} runs. Give more of the id of one:\n{listed}{more}")
    return found[0].run_id if found else None


def run_id_of(text: str, tracking_uri: str | None = None) -> str:
    """The whole id of a run, for those who take nothing but runs; ``RunNotFoundError`` where nothing is called so."""
    if is_run_id(text):
        return text
    found = run_called(text, tracking_uri)
    if found is None:
        raise RunNotFoundError(no_such(text, "run id or run name", tracking_uri))
    return found


def no_such(text: str, what: str, tracking_uri: str | None) -> str:
    """What to say where nothing is called so: with the names of recent runs that are spelt almost so."""
    known = {each.name.lower(): each.name for each in _recent(RECENT, tracking_uri) if each.name}
    near = get_close_matches(text.lower(), list(known), n=3, cutoff=0.6)
    meant = f" Did you mean {or_list([repr(known[each]) for each in near])}?" if near else ""
    return f"No such {what}: {visible(repr(text), MOST_SHOWN)}.{meant} {_looked_in(tracking_uri)}"


def _looked_in(tracking_uri: str | None) -> str:
    return f"Runs were looked for in {_place(tracking_uri)}; --tracking-uri (tracking_uri=) names another store."


def is_run_id(text: str) -> bool:
    """Whether it looks like a whole run id, for which no store needs to be searched."""
    return _RUN_ID.fullmatch(text) is not None


def last_runs(count: int = 1, tracking_uri: str | None = None) -> list[str]:
    """The ids of the runs that were started last, the newest first; ``RunNotFoundError`` where there are none."""
    found = _recent(count, tracking_uri)
    if not found:
        raise RunNotFoundError(f"There is no run yet. {_looked_in(tracking_uri)}")
    return [each.run_id for each in found]


def _recent(count: int, tracking_uri: str | None) -> list[FoundRun]:
    folder = store_folder(tracking_uri)
    if folder is not None:
        return _runs_in(folder)[:count]
    if _has_no_store(tracking_uri):
        return []
    from mlflow_stability.tracking.read.run_search import newest_runs

    return newest_runs(count, tracking_uri)


def _place(tracking_uri: str | None) -> str:
    """Where runs were looked for, without credentials."""
    folder = store_folder(tracking_uri)
    if folder is not None:
        return str(folder)
    from mlflow_stability.tracking.store.client import store_address

    return store_address(tracking_uri)


def _has_no_store(tracking_uri: str | None) -> bool:
    """Whether MLflow would look into a database that there is not."""
    from mlflow_stability.tracking.store.client import missing_database

    return missing_database(tracking_uri) is not None


def _runs_in(store: Path) -> list[FoundRun]:
    from mlflow_stability.importers.mlflow_files import meta_of, name_in_tags

    found = []
    for file in store.glob("*/*/meta.yaml"):
        meta = meta_of(file.parent)
        if meta.get("lifecycle_stage") != "deleted" and "run_id" in meta:
            started = float(meta["start_time"]) / 1000 if meta.get("start_time", "").isdigit() else 0.0
            status = _STATUS.get(meta.get("status", ""), "")
            name = name_in_tags(file.parent) or meta.get("run_name", "")
            found.append(FoundRun(file.parent.name, name, file.parts[-3], status, started))
    return sorted(found, key=lambda each: -each.started)


_STATUS = {"1": "RUNNING", "2": "SCHEDULED", "3": "FINISHED", "4": "FAILED", "5": "KILLED"}


def _described(run: FoundRun) -> str:
    """``3f2a91cc04ab  gpt-small, experiment lm, started 2026-11-22 16:02, FINISHED``."""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started)) if run.started else ""
    names = visible(run.name, MOST_SHOWN), f"experiment {visible(run.experiment, MOST_SHOWN)}"
    parts = (*names, f"started {when}" if when else "", run.status)
    return f"{run.run_id[:12]}  {', '.join(each for each in parts if each)}"
