"""Read MLflow's file store without MLflow: the folder of one run, wherever it was moved to.

A metric whose name has slashes, which is a folder of folders, keeps its name; values keep the order of their time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.importers.history import history_of
from mlflow_stability.importers.log_content import LogContent
from mlflow_stability.tracking.tag_names import process_end
from mlflow_stability.vocabulary.run import RunHistory

_MAX_TEXT = 5000
_MAX_DEPTH = 12
_RUN_FIELDS = frozenset({"run_id", "run_uuid"})
_OUTCOMES = {
    "3": "finished",
    "4": "crashed",
    "5": "killed",
    "FINISHED": "finished",
    "FAILED": "crashed",
    "KILLED": "killed",
}


def is_mlflow_run(folder: Path) -> bool:
    if not _RUN_FIELDS.isdisjoint(meta_of(folder)):
        return True
    return (folder / "metrics").is_dir() and ((folder / "params").is_dir() or _holds_points(folder / "metrics"))


def _holds_points(folder: Path) -> bool:
    """Whether the first metric in a folder is as MLflow writes one: lines of time, value and step."""
    _, file = next(_files(folder), ("", None))
    if file is None:
        return False
    with file.open("rb") as opened:
        words = opened.readline(_MAX_TEXT).split()
    return len(words) == 3 and words[0].isdigit() and len(words[0]) >= 12 and words[2].lstrip(b"-").isdigit()


def is_deleted(folder: Path) -> bool:
    """Whether the run was deleted by its owner; its files stay until MLflow's garbage is collected."""
    return meta_of(folder).get("lifecycle_stage") == "deleted"


def read_mlflow_run(folder: Path) -> list[RunHistory]:
    """Return the run in a folder of MLflow, as a list of one."""
    meta = meta_of(folder)
    content = LogContent(
        params=dict(_texts(folder / "params")),
        tags=dict(_texts(folder / "tags")),
        outcome=_OUTCOMES.get(meta.get("status", ""), ""),  # a process that was killed leaves RUNNING
    )
    if _RUN_FIELDS.isdisjoint(meta):
        problem = "cannot be understood" if (folder / "meta.yaml").exists() else "is missing"
        content.notes.append(f"Its meta.yaml {problem}: start time and status are unknown.")
    elif meta.get("lifecycle_stage") == "deleted":
        content.notes.append("This run was deleted by its owner; its files are still there.")
    for name, file in _files(folder / "metrics"):
        times, values, steps = _points(file)
        content.add_column(name, times.astype(np.int64), values, steps, times=times / 1000)
    name = content.tags.get("mlflow.runName") or meta.get("run_name") or meta.get("name") or folder.name
    history = history_of(content, folder, "mlflow_files", name=name, allow_single_values=True)
    if not any(metric.startswith("stability/") for metric in content.columns):
        return [history]
    # A run of ours: MLflow's metrics hold some of its points, and tags say how it ended.
    outcome, detail = process_end(history.tags)
    note = "These are thinned points; the full record is among the artifacts of the run."
    outcome, notes = outcome or history.outcome, (*history.notes, note)
    return [replace(history, outcome=outcome, outcome_detail=detail, complete=False, notes=notes)]


def meta_of(folder: Path) -> Mapping[str, str]:
    """Return the fields of `meta.yaml`, which MLflow writes flat, a `key: value` a line."""
    try:
        text = (folder / "meta.yaml").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines() if not line.startswith((" ", "#")))
    return {key.strip(): value.strip().strip("'\"") for key, mark, value in pairs if mark}


def name_in_tags(folder: Path) -> str:
    """Return the name of a run from its tag; or an empty text.

    `meta.yaml` has it, too, but wrapped and escaped where it is long or not plain ASCII.
    """
    try:
        with (folder / "tags" / "mlflow.runName").open(encoding="utf-8", errors="replace") as opened:
            return opened.read(_MAX_TEXT).rstrip("\n")
    except OSError:
        return ""


def _points(file: Path) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return times in milliseconds, values and steps, in the order of time."""
    content = file.read_bytes()
    lines = content.count(b"\n") + (not content.endswith(b"\n"))
    words = content.split()
    if len(words) != 3 * lines:  # old MLflow wrote no step; a killed one half a line
        rows = [line.split() for line in content.splitlines()]
        words = [word for row in rows if len(row) >= 2 for word in (*row[:2], row[2] if len(row) > 2 else b"0")]
    try:
        numbers = np.array(words, "S").astype(np.float64) if words else np.empty(0)
    except ValueError:
        numbers = np.array([_number(word) for word in words], np.float64)
    table = numbers.reshape(-1, 3)
    table = table[np.isfinite(table[:, 0]) & np.isfinite(table[:, 2])]
    if (table[1:, 0] < table[:-1, 0]).any():
        table = table[np.argsort(table[:, 0], kind="stable")]
    return table[:, 0], table[:, 1], table[:, 2]


def _number(word: bytes) -> float:
    try:
        return float(word)
    except ValueError:
        return float("nan")


def _texts(folder: Path) -> Iterator[tuple[str, str]]:
    for name, file in _files(folder):
        with file.open(encoding="utf-8", errors="replace") as opened:
            yield name, opened.read(_MAX_TEXT).rstrip("\n")


def _files(folder: Path, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Path]]:
    """Yield all files below, each with the name that its path spells."""
    if not folder.is_dir() or depth > _MAX_DEPTH:
        return
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            yield from _files(entry, f"{prefix}{entry.name}/", depth + 1)
        elif entry.is_file():
            yield f"{prefix}{entry.name}", entry
