"""Reads a pickled history, as Keras users keep theirs: `pickle.dump(history.history, file)`.

In: a pickle, of any protocol. Out: a `RunHistory`. Guarantees: nothing in the file is run, and no object of it is made;
one that holds more than numbers is refused with what that was, and how to save a history so that it can be read.
"""

from __future__ import annotations

import re

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.decode import opened, shown_path, shown_text
from mlflow_stability.importers.files.plain_pickle import NotPlainError, plain_value
from mlflow_stability.importers.formats.json_document import Document, read_document
from mlflow_stability.importers.log_format import LogFormat, Opening, RecognisedBy
from mlflow_stability.vocabulary.run import RunHistory

LARGEST = 128 * 1024 * 1024
"""A pickle is held whole; no history is larger than this."""
_BINARY = re.compile(rb"\x80[\x02-\x05]|[}\]]q\x00[(X.}\]]|[}\]]\.")
_TEXT = re.compile(rb"\((?:d|l)p\d+\r?\n|\((?:d|l)\.")


def read_pickled_history(opening: Opening) -> list[RunHistory] | None:
    """The run in a pickle."""
    if not (_BINARY.match(opening.head) or _TEXT.match(opening.head)):
        return None
    with opened(opening.path) as file:
        content = file.read(LARGEST + 1)
    try:
        if len(content) > LARGEST:
            raise NotPlainError(f"more than {LARGEST // 1024**2} MiB")
        found = plain_value(content)
    except NotPlainError as error:
        raise UnreadableLogError(
            f"{shown_path(opening.path)} is a pickle, and it holds {shown_text(str(error))}. Only pickles of "
            "numbers, strings, lists and dictionaries are read, because others can run arbitrary code; checkpoints "
            "have no curves. Save the history as JSON or CSV: json.dump(history.history, file)."
        ) from None
    return [read_document(opening.path, Document(found), "pickle")]


FORMAT = LogFormat("pickled histories", RecognisedBy.MARK, read_pickled_history, frozenset({".pkl", ".pickle", ".p"}))
