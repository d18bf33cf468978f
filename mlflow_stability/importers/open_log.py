"""Reads whatever was given: a file or a folder, of any format that is known, told by its content.

In: a path. Out: a `RunHistory` for each run in it. Promised: names of files do not matter; a folder gives every log
in it and below, each with the path that it has; what cannot be read is told in one sentence that says what to do.
"""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.csv_header import separator_of
from mlflow_stability.importers.event_file import is_event_file, read_event_files
from mlflow_stability.importers.folder import read_folder
from mlflow_stability.importers.harmless import reason_of, shown_path
from mlflow_stability.importers.json_document import document_of, read_document
from mlflow_stability.importers.json_rows import json_line
from mlflow_stability.importers.log_text import encoding_of, head_of, plain
from mlflow_stability.importers.text_log import read_text_log
from mlflow_stability.vocabulary.run_history import RunHistory

_LINES_LOOKED_AT = 30
_DOCUMENT = re.compile(r"\{\s*[\"}]|\[\s*[{\[]")


def read(path: Path) -> list[RunHistory]:
    """The runs at a path: one for a file; for a folder as many as it holds, in the order of their paths."""
    try:
        return read_folder(path, read_file) if path.is_dir() else [read_file(path)]
    except (OSError, ValueError) as error:  # a folder above it that may not be entered; a name that no system takes
        raise UnreadableLogError(f"{shown_path(path)} could not be read: {reason_of(error)}.") from error
    except UnreadableLogError:
        raise
    except Exception as error:  # a log that a reader was not written for must not take others with it
        what = f"unexpected {type(error).__name__}, {reason_of(error)}"
        raise UnreadableLogError(f"{shown_path(path)} could not be read: {what}. Please report it.") from error


def read_file(path: Path) -> RunHistory:
    """The run that a file tells of."""
    if path.exists() and not path.is_file():
        raise UnreadableLogError(f"{shown_path(path)} is neither a file nor a folder; give the path of a log.")
    head = head_of(path)
    if not head.strip():
        raise UnreadableLogError(f"{shown_path(path)} is empty; nothing was logged to it.")
    if is_event_file(head):
        return read_event_files(path, [path])
    encoding = encoding_of(head)
    if encoding is None:
        raise UnreadableLogError(
            f"{shown_path(path)} is a binary file of no known kind. Logs in text, CSV or JSON, TensorBoard event files "
            "and MLflow folders can be read; a checkpoint holds no curves."
        )
    text = head.decode(encoding, "replace")
    if _may_be_a_document(text):
        document = document_of(path, encoding)
        if document is not None:
            return read_document(path, document)
    separator = separator_of(list(islice(map(plain, text.splitlines()), _LINES_LOOKED_AT)))
    if separator is not None:
        from mlflow_stability.importers.csv_table import read_csv  # pandas takes a third of a second to load

        return read_csv(path, encoding, separator)
    return read_text_log(path, encoding)


def _may_be_a_document(text: str) -> bool:
    """Whether a file is one JSON value, rather than a text or one value on each line."""
    begun = text.lstrip("\ufeff \t\r\n")
    if not _DOCUMENT.match(begun):
        return False
    first, _, rest = begun.partition("\n")
    return not (rest.strip() and json_line(first))
