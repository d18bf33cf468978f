"""Reads one document: Hugging Face's trainer state, a list of rows, or names with lists of values.

In: a text file that is one value in JSON, or as Python prints it. Out: a `RunHistory`. Guarantees: the row in which a
Trainer sums up its training is no point of a curve; ``NaN`` and ``Infinity`` are values, ``null`` was not logged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.assemble.data_splits import measured_on
from mlflow_stability.importers.assemble.history import history_of
from mlflow_stability.importers.assemble.log_content import LogContent
from mlflow_stability.importers.assemble.step_names import is_epoch, step_name
from mlflow_stability.importers.decode import shown_path, text_of
from mlflow_stability.importers.files.json_rows import closed, json_line, log_row, number_in, parsed, row_lines
from mlflow_stability.importers.files.row_lists import in_order, parts_among, row_lists
from mlflow_stability.importers.log_format import LogFormat, Opening, RecognisedBy
from mlflow_stability.vocabulary.run import RunHistory

LARGEST = 500_000_000
"""A document is held whole; one with more characters than this is refused."""
_SUMMARY = frozenset({"train_runtime", "total_flos"})
_DEEPEST = 4
_DOCUMENT = re.compile(r"\{\s*(?:[uU]?['\"}]|\d+\s*:)|\[\s*[{\[]|(?:collections\.)?defaultdict\(<")


@dataclass(frozen=True, slots=True)
class Document:
    """One JSON value."""

    value: object
    cut: bool = False
    """Whether the file ends in the middle of it."""
    text: str = ""
    """What it was read from, where it was read from a text."""


def read_json(opening: Opening) -> list[RunHistory] | None:
    """The run that a JSON document tells of."""
    document = document_of(opening)
    return None if document is None else [read_document(opening.path, document)]


def document_of(opening: Opening) -> Document | None:
    """The JSON document in a file, as far as it goes; None if it holds something else."""
    if opening.encoding is None or not _may_be_a_document(opening.text):
        return None
    return document_in(opening.path, opening.encoding)


def _may_be_a_document(text: str) -> bool:
    """Whether a file is one JSON value, rather than a text or one value on each line."""
    begun = text.lstrip("\ufeff \t\r\n")
    if not _DOCUMENT.match(begun):
        return False
    first, _, rest = begun.partition("\n")
    return not (rest.strip() and json_line(first))


def document_in(path: Path, encoding: str) -> Document | None:
    """The document that a text is, as far as it goes; None if it is none."""
    with text_of(path, encoding) as text:
        whole = text.read(LARGEST + 1)
    if len(whole) > LARGEST:
        raise UnreadableLogError(
            f"{shown_path(path)} is a single JSON document of more than {LARGEST // 1_000_000} MB; "
            "write one JSON object a line instead, which is read line by line."
        )
    value = _value(whole)
    if value is not None:
        return Document(value, text=whole)
    rest = closed(whole)
    value = None if rest is None else _value(rest)
    return None if value is None else Document(value, cut=True, text=whole)


def _value(text: str) -> object:
    found = parsed(text)
    return found if isinstance(found, dict | list) else None


def read_document(path: Path, found: Document, log_format: str = "json") -> RunHistory:
    """The run that a document tells of."""
    content, document = LogContent(), found.value
    if found.cut:
        content.notes.append("The file is truncated: the complete part was read.")
    if isinstance(document, dict) and isinstance(document.get("log_history"), list):
        rows = [row for row in document["log_history"] if isinstance(row, dict)]
        _read_rows(content, rows, found.text, _SUMMARY)
        content.params.update(_facts(document))
        return history_of(content, path, "trainer_state")
    lists = list(row_lists(document))
    if lists:
        _read_parts(content, parts_among(lists), found.text)
    elif isinstance(document, dict):
        _read_lists(content, document)
    return history_of(content, path, log_format)


def rows_history(rows: Sequence[Mapping[str, object]], path: Path, log_format: str) -> RunHistory | None:
    """The run that rows of names and values tell of; None where no metric has two values."""
    content = LogContent()
    _read_rows(content, rows)
    try:
        return history_of(content, path, log_format)
    except UnreadableLogError:
        return None


def _read_rows(
    content: LogContent,
    rows: Sequence[Mapping[str, object]],
    text: str = "",
    summary: frozenset[str] = frozenset(),
) -> None:
    """Add rows, but those with a name of a summary; ``text``: the document that they stand in."""
    _read_parts(content, [("", rows)], text, summary)


def _read_parts(
    content: LogContent,
    parts: Sequence[tuple[str, Sequence[Mapping[str, object]]]],
    text: str = "",
    summary: frozenset[str] = frozenset(),
) -> None:
    """Add the rows of each part of the data, in the order in which they were measured."""
    lines = row_lines(text, [rows for _, rows in parts])
    reads = [[log_row(row) for row in rows] for _, rows in parts]
    every = in_order(reads, [bool(word) for word, _ in parts])
    if lines:
        numbers = np.array([lines[part][at] for part, at in every], np.int64)
        content.at_lines(np.arange(len(every), dtype=np.int64), numbers)
    for number, (part, at) in enumerate(every):
        (word, rows), read = parts[part], reads[part][at]
        if not summary & set(rows[at]):
            values = {measured_on(word, name): value for name, value in read.values.items()} if word else read.values
            content.add_row(number, values, read.step, read.epoch, read.time)


def _read_lists(content: LogContent, document: Mapping[str, object]) -> None:
    """Lists of numbers by name, as Keras's `History.history` has them; or pairs of step and value."""
    lists = dict(_lists(document))
    lengths = {len(values) for values in lists.values()}
    step = step_name(lists)
    epoch = next((name for name in lists if is_epoch(name)), None)
    for name, values in lists.items():
        if name in (step, epoch) and len(lengths) == 1:
            continue
        numbers = _numbers(each[-1] if isinstance(each, list) else each for each in values)
        logged = np.array([each is not None for each in values])
        rows = np.arange(len(values), dtype=np.int64)
        steps = np.full(len(values), np.nan)
        if values and isinstance(values[0], list):
            steps = _numbers(each[-2] for each in values)
        elif step is not None and len(lists[step]) == len(values):
            steps = _numbers(lists[step])
        epochs = _numbers(lists[epoch]) if epoch and len(lists[epoch]) == len(values) else np.full(len(values), np.nan)
        content.add_column(name, rows[logged], numbers[logged], steps[logged], epochs[logged])


def _numbers(values: Iterable[object]) -> NDArray[np.float64]:
    """As floating-point numbers; what is none is NaN."""
    return np.array([number_in(each) for each in values], np.float64)


def _lists(document: Mapping[str, object], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, list]]:  # type: ignore[type-arg]
    for key, value in document.items():
        if isinstance(value, dict) and depth < _DEEPEST:
            yield from _lists(value, f"{prefix}{key}/", depth + 1)
        elif isinstance(value, list) and value and (_all_numbers(value) or _all_points(value)):
            yield f"{prefix}{key}", value


def _all_numbers(values: Sequence[object]) -> bool:
    return all(each is None or type(each) in (int, float) for each in values)


def _all_points(values: Sequence[object]) -> bool:
    """Whether these are `[step, value]` or `[time, step, value]`, as TensorBoard's download has them."""
    return all(
        isinstance(each, list) and len(each) in (2, 3) and _all_numbers(each) and None not in each for each in values
    )


def _facts(document: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name in ("max_steps", "num_train_epochs", "train_batch_size", "best_metric", "best_model_checkpoint"):
        if document.get(name) is not None:
            yield name, str(document[name])


FORMAT = LogFormat("JSON", RecognisedBy.DOCUMENT, read_json, frozenset({".json"}))
