"""Read any file or folder of a known format, recognised by its content."""

from __future__ import annotations

from pathlib import Path

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.folder import read_folder
from mlflow_stability.importers.log_format import LogFile, formats
from mlflow_stability.importers.log_text import encoding_of, error_reason, head_of, printable, printable_path
from mlflow_stability.vocabulary.run import RunHistory


def read(path: Path) -> list[RunHistory]:
    """Return the runs at a path, at least one; for a folder all in it and below, in the order of their paths.

    Raises:
        UnreadableLogError: With the reason and the remedy.
    """
    try:
        if path.is_dir():
            return read_folder(path, read_file)
        return _read_part(path) if path.parent.is_file() else read_file(path)
    except (OSError, ValueError) as error:  # a folder above it that may not be entered; a name that no system takes
        raise UnreadableLogError(f"{printable_path(path)} could not be read: {error_reason(error)}.") from error
    except UnreadableLogError:
        raise
    except Exception as error:  # a log that a reader was not written for must not take others with it
        reason = f"unexpected {type(error).__name__}, {error_reason(error)}"
        raise UnreadableLogError(f"{printable_path(path)} could not be read: {reason}. Please report it.") from error


def _read_part(path: Path) -> list[RunHistory]:
    """Return one of the runs in a file, named as its `source` has it: `train.ipynb/cell 19`."""
    runs = [run for run in read_file(path.parent) if run.source == str(path)]
    if not runs:
        raise UnreadableLogError(
            f"{printable_path(path.parent)} has no {printable(path.name)} with training metrics. "
            "Give the file alone to see all."
        )
    return runs


def read_file(path: Path) -> list[RunHistory]:
    """Return the runs in a file: one, unless it is a notebook or a chart with several trainings."""
    if path.exists() and not path.is_file():
        raise UnreadableLogError(f"{printable_path(path)} is not a file or folder; give the path of a log.")
    head = head_of(path)
    if not head.strip():
        raise UnreadableLogError(f"{printable_path(path)} is empty.")
    log_file = LogFile(path, head, encoding_of(head))
    for log_format in formats():
        runs = log_format.read(log_file)
        if runs is not None:
            return runs
    names = ", ".join(log_format.name for log_format in formats())
    raise UnreadableLogError(
        f"{printable_path(path)} is a binary file of unknown format. {names} "
        "and MLflow folders can be read; checkpoints have no curves."
    )
