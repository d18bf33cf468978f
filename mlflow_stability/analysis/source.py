"""Resolve a source that a user named: the path of a log, or a run.

What exists as a path is taken as one, even where its name looks like a run id, and a remark says so. A run may
be named by its id, the beginning of its id, or its name; only the last two need a search of the store. An ambiguous
name is an error that lists the runs it may mean. A store of files is searched without MLflow, which no longer opens
such stores by itself.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mlflow_stability.errors import RunNotFoundError, TrackingError, UnreadableLogError
from mlflow_stability.vocabulary.argument import Accepts, or_list
from mlflow_stability.vocabulary.run import FoundRun, RunHistory
from mlflow_stability.vocabulary.text.phrases import visible

MAX_LISTED, MAX_NAME = 8, 80
RECENT_RUNS = 50  # runs whose names are compared with a name that does not exist
DEFAULT_STORE = "mlruns"
_RUN_ID = re.compile(r"[0-9a-fA-F]{32}")
_STATUS = {"1": "RUNNING", "2": "SCHEDULED", "3": "FINISHED", "4": "FAILED", "5": "KILLED"}
_FOLDERS_WITHOUT_RUNS = frozenset({"tags", "datasets", "traces", "models"})


def run_called(text: str, tracking_uri: str | None = None) -> str | None:
    """Return the id of the run that this names, if any; raise ``RunNotFoundError`` if it may mean several."""
    store = store_folder(tracking_uri)
    if store is not None:
        every = _runs_in(store)
        runs = [run for run in every if run.name == text]
        runs = runs or [run for run in every if run.run_id.startswith(text.lower())]
    elif _has_no_store(tracking_uri):
        return None
    else:
        from mlflow_stability.tracking.read.run_search import runs_called

        runs = runs_called(text, tracking_uri)
    if len(runs) > 1:
        lines = []
        for run in runs[:MAX_LISTED]:
            started = time.strftime("started %Y-%m-%d %H:%M", time.localtime(run.started)) if run.started else ""
            parts = visible(run.name, MAX_NAME), f"experiment {visible(run.experiment, MAX_NAME)}", started, run.status
            lines.append(f"\n  {run.run_id[:12]}  {', '.join(filter(None, parts))}")
        more = f"\n  and {len(runs) - MAX_LISTED} more" if len(runs) > MAX_LISTED else ""
        raise RunNotFoundError(f"{text!r} may mean {len(runs)} runs. Give more of the id of one:{''.join(lines)}{more}")
    return runs[0].run_id if runs else None


def run_id_of(text: str, tracking_uri: str | None = None) -> str:
    """Return the whole id of a run; raise ``RunNotFoundError`` if there is no such run."""
    run_id = text if is_run_id(text) else run_called(text, tracking_uri)
    if run_id is None:
        raise RunNotFoundError(no_such(text, "run id or run name", tracking_uri))
    return run_id


def no_such(text: str, what: str, tracking_uri: str | None) -> str:
    """Return what to say if there is no such run, with similar names of recent runs."""
    names = {run.name.lower(): run.name for run in _recent(RECENT_RUNS, tracking_uri) if run.name}
    near = get_close_matches(text.lower(), list(names), n=3, cutoff=0.6)
    meant = f" Did you mean {or_list([repr(names[name]) for name in near])}?" if near else ""
    return f"No such {what}: {visible(repr(text), MAX_NAME)}.{meant} {_searched_place(tracking_uri)}"


def _searched_place(tracking_uri: str | None) -> str:
    place = store_folder(tracking_uri)
    if place is None:
        from mlflow_stability.tracking.client import store_address

        address = store_address(tracking_uri)  # without credentials
    else:
        address = str(place)
    return f"Runs were looked for in {address}; --tracking-uri (tracking_uri=) names another store."


def is_run_id(text: str) -> bool:
    """Whether it looks like a whole run id, for which no store needs to be searched."""
    return _RUN_ID.fullmatch(text) is not None


def last_runs(count: int = 1, tracking_uri: str | None = None) -> list[str]:
    """Return the ids of the runs that were started last, the newest first; raise ``RunNotFoundError`` for no runs."""
    runs = _recent(count, tracking_uri)
    if not runs:
        raise RunNotFoundError(f"There is no run yet. {_searched_place(tracking_uri)}")
    return [run.run_id for run in runs]


def _recent(count: int, tracking_uri: str | None) -> list[FoundRun]:
    store = store_folder(tracking_uri)
    if store is not None:
        return _runs_in(store)[:count]
    if _has_no_store(tracking_uri):
        return []
    from mlflow_stability.tracking.read.run_search import newest_runs

    return newest_runs(count, tracking_uri)


def _has_no_store(tracking_uri: str | None) -> bool:
    """Whether MLflow would look into a database that does not exist."""
    from mlflow_stability.tracking.client import missing_database

    return missing_database(tracking_uri) is not None


def _runs_in(store: Path) -> list[FoundRun]:
    from mlflow_stability.importers.mlflow_files import meta_of, name_in_tags

    runs = []
    for file in store.glob("*/*/meta.yaml"):
        meta = meta_of(file.parent)
        if meta.get("lifecycle_stage") != "deleted" and "run_id" in meta:
            started = float(meta["start_time"]) / 1000 if meta.get("start_time", "").isdigit() else 0.0
            name = name_in_tags(file.parent) or meta.get("run_name", "")
            status = _STATUS.get(meta.get("status", ""), "")
            runs.append(FoundRun(file.parent.name, name, file.parts[-3], status, started))
    return sorted(runs, key=lambda run: -run.started)


def run_folder(run_id: str, tracking_uri: str | None = None) -> Path | None:
    store = store_folder(tracking_uri)
    if store is None:
        return None
    files = (file for name in (run_id, run_id.lower()) for file in sorted(store.glob(f"*/{name}/meta.yaml")))
    return next((file.parent for file in files), None)


def store_folder(tracking_uri: str | None = None) -> Path | None:
    """Return the folder of a store of files; None if runs live in a database or on a server."""
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        # MLflow's default database keeps artifacts in a folder of this name: one of runs has a file about each.
        return Path(DEFAULT_STORE) if any(Path(DEFAULT_STORE).glob("*/*/meta.yaml")) else None
    if uri.startswith("file:"):
        store = Path(unquote(urlsplit(uri).path))
    elif "://" in uri or uri.startswith(("databricks", "uc")):
        return None
    else:
        store = Path(uri)
    return store if store.is_dir() else None


def runs_among(sources: Iterable[str]) -> list[str]:
    """Return the sources without what a pattern such as `mlruns/0/*` finds beside runs; all if nothing is left."""
    sources = list(sources)
    return [source for source in sources if not _belongs_to_store(Path(source))] or sources


def _belongs_to_store(path: Path) -> bool:
    """Whether a path is a part of a store of files that holds no run: `mlruns/0/meta.yaml`, `mlruns/models`."""
    if path.name == "meta.yaml":
        return path.is_file()
    if path.name not in _FOLDERS_WITHOUT_RUNS or not path.is_dir():
        return False
    return (path.parent / "meta.yaml").is_file() or any(path.parent.glob("*/meta.yaml"))


def from_full_record(history: RunHistory) -> RunHistory:
    """Return the history from our full record, wherever the run's folder was copied to; unchanged without one."""
    if history.format != "mlflow_files":
        return history
    from mlflow_stability.tracking.artifacts import RECORD_FOLDERS  # only runs of MLflow have artifacts

    folder = Path(history.source)
    if not any((folder / "artifacts" / name).is_dir() for name in RECORD_FOLDERS):
        return history
    from mlflow_stability.tracking.read.recorded_history import RunFacts, recorded_folder, with_metrics_of_the_script

    facts = RunFacts(history.source, history.name, "", history.params, history.tags)
    recorded = recorded_folder(folder, facts)
    return history if recorded is None else with_metrics_of_the_script(recorded, history.metrics)


def _source_name(source: object) -> str:
    if source == "" or not isinstance(source, str | os.PathLike):
        raise TypeError
    text = os.fspath(source)
    if not isinstance(text, str):
        raise TypeError
    return text


_PATH_PREFIXES = (os.sep, f".{os.sep}", f"..{os.sep}", f"~{os.sep}")  # what begins so is never the name of a run
_SOURCE = Accepts("the id of an MLflow run or the path of a log", _source_name)


@dataclass(frozen=True, slots=True)
class ResolvedSource:
    source: str  # as it was passed; the whole id of a run that was named by less
    path: Path | None  # where to read; None: `source` is the id of a run
    remark: str = ""  # what to show the user, if it could have meant something else

    @property
    def is_path(self) -> bool:
        return self.path is not None


def source_text(source: object, argument: str = "run_id_or_path") -> str:
    """Return the text of an argument that names a run; raise ``SettingsError`` for what can name none."""
    text: str = _SOURCE.check(argument, source)
    return text


def source_texts(sources: object, argument: str) -> Iterator[str]:
    """Yield the texts of an argument that names one run or several."""
    several = sources if isinstance(sources, Iterable) and not isinstance(sources, str | bytes) else (sources,)
    return (source_text(source, argument) for source in several)


def resolve_source(
    source: str | os.PathLike[str], tracking_uri: str | None = None, argument: str = "run_id_or_path"
) -> ResolvedSource:
    """Return what this is.

    Raises ``UnreadableLogError`` for a text that is neither, ``RunNotFoundError`` for an ambiguous name.
    """
    text = source_text(source, argument)
    looks_like_a_run = isinstance(source, str) and is_run_id(text)
    if os.path.lexists(text):
        remark = f"{text} exists as a path, so it was not read as a run id." if looks_like_a_run else ""
        return ResolvedSource(text, Path(text), remark)
    if _is_run_in_file(text):
        return ResolvedSource(text, Path(text))
    if looks_like_a_run:
        return ResolvedSource(text, None)
    if not isinstance(source, str) or text.startswith(_PATH_PREFIXES):
        raise UnreadableLogError(f"No such file or folder: {text!r}.")
    # A run can be called `facebook/opt-125m`, too.
    is_like_a_path = "/" in text or os.sep in text or Path(text).suffix[1:].isalpha()
    try:
        run_id = run_called(text, tracking_uri)
        if run_id is None:
            what = "file or folder" if is_like_a_path else "file, folder, run id or run name"
            raise UnreadableLogError(no_such(text, what, tracking_uri))
    except TrackingError:
        if not is_like_a_path:
            raise
        raise UnreadableLogError(f"No such file or folder: {text!r}.") from None
    return ResolvedSource(run_id, None)


def names_a_source(text: str) -> bool:
    """Whether it is an existing path, or a whole run id: no store needs to be searched."""
    return os.path.lexists(text) or _is_run_in_file(text) or is_run_id(text)


def _is_run_in_file(text: str) -> bool:
    """Whether it is one of the runs in a file: `train.ipynb/cell 19`."""
    return os.path.isfile(os.path.dirname(text))  # noqa: PTH113, PTH120
