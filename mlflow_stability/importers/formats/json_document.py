"""Read one document: Hugging Face's trainer state, a list of rows, or names with lists of values.

The summary row of a Trainer is no point of a curve; `NaN` and `Infinity` are values, `null` was not
logged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.field_names import is_epoch, loss_of_file, split_word, step_name, step_rank, with_split
from mlflow_stability.importers.history import history_of
from mlflow_stability.importers.json_rows import close_document, json_line, log_row, number_in, parse_value, row_lines
from mlflow_stability.importers.log_content import LogContent, LogLine
from mlflow_stability.importers.log_format import LogFile, LogFormat, RecognisedBy
from mlflow_stability.importers.log_text import open_text, printable_path
from mlflow_stability.vocabulary.run import RunHistory
from mlflow_stability.vocabulary.text.metric_names import HELD_OUT, TRAIN

MAX_CHARACTERS = 500_000_000  # a document is held whole; a longer one is refused
_MAX_DEPTH = 4
_SUMMARY_FIELDS = frozenset({"train_runtime", "total_flos"})
_TRAINER_FACTS = ("max_steps", "num_train_epochs", "train_batch_size", "best_metric", "best_model_checkpoint")
_DOCUMENT = re.compile(r"\{\s*(?:[uU]?['\"}]|\d+\s*:)|\[\s*[{\[]|(?:collections\.)?defaultdict\(<")
_NUMBERS = re.compile(r"\[\s*[-+\d.]+(?:[eE][-+]?\d+)?\s*,")

Rows = Sequence[Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Document:
    value: object
    truncated: bool = False
    text: str = ""  # the text that it was read from; empty for a value from elsewhere


def read_json(log_file: LogFile) -> list[RunHistory] | None:
    """Return the run in a JSON document; None for one value on each line."""
    if log_file.encoding is None:
        return None
    text = log_file.text.lstrip("\ufeff \t\r\n")
    nameless = loss_of_file(log_file.path.stem) and _NUMBERS.match(text)
    if not (nameless or _DOCUMENT.match(text)):
        return None
    first, _, rest = text.partition("\n")
    if rest.strip() and json_line(first):
        return None
    document = load_document(log_file.path, log_file.encoding)
    if document is None:
        return None
    is_list = isinstance(document.value, list) and _all_numbers(document.value) and not document.truncated
    if nameless and not is_list:  # `[1, 2000] loss: 2.1` begins like a list
        return None
    return [document_history(log_file.path, document)]


def load_document(path: Path, encoding: str) -> Document | None:
    """Return the document in a text file, up to where it is truncated; None for another text."""
    with open_text(path, encoding) as file:
        text = file.read(MAX_CHARACTERS + 1)
    if len(text) > MAX_CHARACTERS:
        raise UnreadableLogError(
            f"{printable_path(path)} is a single JSON document of more than {MAX_CHARACTERS // 1_000_000} MB; "
            "write one JSON object a line instead, which is read line by line."
        )
    value = parse_value(text)
    if isinstance(value, dict | list):
        return Document(value, text=text)
    closed = close_document(text)
    value = None if closed is None else parse_value(closed)
    return Document(value, truncated=True, text=text) if isinstance(value, dict | list) else None


def document_history(path: Path, document: Document, log_format: str = "json") -> RunHistory:
    content, value = LogContent(), document.value
    if document.truncated:
        content.notes.append("The file is truncated: the complete part was read.")
    if isinstance(value, dict) and isinstance(value.get("log_history"), list):
        rows = [row for row in value["log_history"] if isinstance(row, dict)]
        _add_parts(content, [("", rows)], document.text, _SUMMARY_FIELDS)
        content.params.update((name, str(value[name])) for name in _TRAINER_FACTS if value.get(name) is not None)
        return history_of(content, path, "trainer_state")
    lists = list(_row_lists(value))
    if lists:
        parts = _splits_of(lists)
        _add_parts(content, parts, document.text)
        if len(parts) == 1 and isinstance(value, dict):
            _add_lists_beside(content, value, parts[0][1])
    elif isinstance(value, dict):
        # `losses.json` with `{"train": [2.3, 1.9]}`
        of_losses = bool(loss_of_file(path.stem))
        names = {key: f"{key}_loss" if of_losses and split_word(str(key)) == str(key) else str(key) for key in value}
        _add_lists(content, {names[key]: part for key, part in value.items()})
    elif loss := loss_of_file(path.stem):
        _add_lists(content, {loss: value})
    return history_of(content, path, log_format)


def _row_lists(document: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Rows]]:
    """Yield the lists of objects in a document, each with the names that lead to it."""
    if isinstance(document, list):
        rows = [row for row in document if isinstance(row, dict)]
        if len(rows) >= 2 and len(rows) * 2 > len(document):
            yield path, rows
    elif isinstance(document, dict) and len(path) <= _MAX_DEPTH:
        for name, value in document.items():
            yield from _row_lists(value, (*path, str(name)))


def _splits_of(lists: Sequence[tuple[tuple[str, ...], Rows]]) -> list[tuple[str, Rows]]:
    """Return the longest list and those of other splits, as in `{"train": [...], "val": [...]}`.

    Each comes with its word for held-out data, empty for training data, in the order of the document. A list is taken
    only if its name is a word for a split, and if it counts what the longest counts.
    """
    path, longest = max(lists, key=lambda item: len(item[1]))
    for place in range(len(path)):
        siblings = [
            (split_word(other[place]), rows)
            for other, rows in lists
            if (*other[:place], "", *other[place + 1 :]) == (*path[:place], "", *path[place + 1 :])
            and (rows is longest or _count_alike(longest, rows))
        ]
        own = split_word(path[place])
        chosen = {own: longest}
        for word, rows in siblings:
            if word in HELD_OUT or (word in TRAIN and own in HELD_OUT):
                chosen[word] = max(chosen.get(word, rows), rows, key=len)
        if len(chosen) > 1:
            return [
                (word if word in HELD_OUT else "", rows)
                for word, rows in siblings
                if any(rows is other for other in chosen.values())
            ]
    return [("", longest)]


def _count_alike(rows: Rows, others: Rows) -> bool:
    """Whether two lists name the same epoch or step; where neither names any, whether they have the same length."""
    names, other_names = (
        {name for name in part[0] if is_epoch(str(name)) or step_rank(str(name)) >= 0} for part in (rows, others)
    )
    return bool(names & other_names) or (not names and not other_names and len(rows) == len(others))


def _add_parts(
    content: LogContent, parts: Sequence[tuple[str, Rows]], text: str = "", summary_fields: frozenset[str] = frozenset()
) -> None:
    """Add the rows of each split in the order of measurement, without rows of a summary.

    `text`: the document that the rows come from, for their line numbers.
    """
    lines = row_lines(text, [rows for _, rows in parts])
    reads = [[log_row(row) for row in rows] for _, rows in parts]
    order = _measured_order(reads, [bool(split) for split, _ in parts])
    if lines:
        content.row_lines = np.array([lines[part][place] for part, place in order], np.int64)
    for number, (part, place) in enumerate(order):
        (split, rows), read = parts[part], reads[part][place]
        if not summary_fields & set(rows[place]):
            values = {with_split(split, name): value for name, value in read.values.items()} if split else read.values
            content.add_row(number, values, read.step, read.epoch, read.time)


def _measured_order(parts: Sequence[Sequence[LogLine]], held_out: Sequence[bool]) -> list[tuple[int, int]]:
    """Return part and place of each row in the order of measurement: validation after its training."""
    places = [[(part, place) for place in range(len(rows))] for part, rows in enumerate(parts)]
    counters = (  # the first one counts that every row has and that never falls within a list
        [[row.epoch for row in rows] for rows in parts],
        [[row.step for row in rows] for rows in parts],
        [list(map(float, range(len(rows)))) for rows in parts],
    )
    for counts in counters if len(parts) > 1 else ():
        # A comparison with NaN is false, and the first count is compared with itself.
        if all(before <= after for part in counts for before, after in pairwise([part[0], *part])):
            trained_first = sorted(places, key=lambda part: held_out[part[0][0]])
            return list(merge(*trained_first, key=lambda place: counts[place[0]][place[1]]))
    return list(chain.from_iterable(places))


def _add_lists(content: LogContent, document: Mapping[str, object]) -> None:
    """Add lists of numbers by name, as Keras's `History.history` has them; or pairs of step and value."""
    lists = dict(_number_lists(document))
    same_length = len({len(values) for values in lists.values()}) == 1
    step = step_name(lists)
    epoch = next((name for name in lists if is_epoch(name)), None)
    for name, values in lists.items():
        if name in (step, epoch) and same_length:
            continue
        numbers = _numbers(value[-1] if isinstance(value, list) else value for value in values)
        logged = np.array([value is not None for value in values])
        rows = np.arange(len(values), dtype=np.int64)
        steps, epochs = np.full(len(values), np.nan), np.full(len(values), np.nan)
        if values and isinstance(values[0], list):
            steps = _numbers(value[-2] for value in values)
        elif step is not None and len(lists[step]) == len(values):
            steps = _numbers(lists[step])
        if epoch and len(lists[epoch]) == len(values):
            epochs = _numbers(lists[epoch])
        content.add_column(name, rows[logged], numbers[logged], steps[logged], epochs[logged])


def _add_lists_beside(content: LogContent, document: Mapping[str, object], rows: Rows) -> None:
    """Add lists with a number for each row: `{"loss": [2.3, 1.9], "stats": [{"step": 0, "lr": 0.1}, …]}`."""
    steps, epochs = ([getattr(read, count) for read in map(log_row, rows)] for count in ("step", "epoch"))
    for name, values in _number_lists(document):
        if len(values) == len(rows) and _all_numbers(values) and name not in content.columns:
            logged = np.array([value is not None for value in values])
            counts = (np.arange(len(values)), _numbers(values), np.array(steps), np.array(epochs))
            content.add_column(name, *(numbers[logged] for numbers in counts))


def _numbers(values: Iterable[object]) -> NDArray[np.float64]:
    return np.array([number_in(value) for value in values], np.float64)


def _number_lists(document: Mapping[str, object], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, list]]:  # type: ignore[type-arg]
    for key, value in document.items():
        if isinstance(value, dict) and depth < _MAX_DEPTH:
            yield from _number_lists(value, f"{prefix}{key}/", depth + 1)
        elif isinstance(value, list) and value:
            # `[step, value]` or `[time, step, value]`, as TensorBoard's download has them
            points = (isinstance(p, list) and len(p) in (2, 3) and _all_numbers(p) and None not in p for p in value)
            if _all_numbers(value) or all(points):
                yield f"{prefix}{key}", value


def _all_numbers(values: Sequence[object]) -> bool:
    return all(value is None or type(value) in (int, float) for value in values)


FORMAT = LogFormat("JSON", RecognisedBy.DOCUMENT, read_json, frozenset({".json"}))
