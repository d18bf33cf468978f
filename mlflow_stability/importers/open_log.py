"""Reads whatever was given: a file or a folder, of any format that is known, told by its content.

In: a path. Out: a `RunHistory` for each run in it. Guarantees: names of files do not matter; a folder gives every log
in it and below, each with the path that it has; what cannot be read is told in one sentence that says what to do.
"""

from __future__ import annotations

from pathlib import Path

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.decode import encoding_of, head_of, reason_of, shown_path, shown_text
from mlflow_stability.importers.folder import read_folder
from mlflow_stability.importers.log_format import Opening, formats
from mlflow_stability.vocabulary.run import RunHistory


def read(path: Path) -> list[RunHistory]:
    """The runs at a path, at least one; for a folder as many as it holds, in the order of their paths."""
    try:
        if path.is_dir():
            return read_folder(path, read_file)
        return read_part(path) if path.parent.is_file() else read_file(path)
    except (OSError, ValueError) as error:  # a folder above it that may not be entered; a name that no system takes
        raise UnreadableLogError(f"{shown_path(path)} could not be read: {reason_of(error)}.") from error
    except UnreadableLogError:
        raise
    except Exception as error:  # a log that a reader was not written for must not take others with it
        what = f"unexpected {type(error).__name__}, {reason_of(error)}"
        raise UnreadableLogError(f"{shown_path(path)} could not be read: {what}. Please report it.") from error


def read_part(path: Path) -> list[RunHistory]:
    """One of the runs that a file holds, named as its `source` has it: ``train.ipynb/cell 19``."""
    runs = [run for run in read_file(path.parent) if run.source == str(path)]
    if not runs:
        raise UnreadableLogError(
            f"{shown_path(path.parent)} has no {shown_text(path.name)} with training metrics. "
            "Give the file alone to see all."
        )
    return runs


def read_file(path: Path) -> list[RunHistory]:
    """The runs that a file tells of: one, unless it is a notebook in which several things were trained."""
    if path.exists() and not path.is_file():
        raise UnreadableLogError(f"{shown_path(path)} is not a file or folder; give the path of a log.")
    head = head_of(path)
    if not head.strip():
        raise UnreadableLogError(f"{shown_path(path)} is empty.")
    opening = Opening(path, head, encoding_of(head))
    for each in formats():
        runs = each.read(opening)
        if runs is not None:
            return runs
    raise UnreadableLogError(
        f"{shown_path(path)} is a binary file of unknown format. {', '.join(each.name for each in formats())} "
        "and MLflow folders can be read; checkpoints have no curves."
    )
