"""Reads rows of values that are written as JSON objects or as Python prints its dictionaries.

In: an object, or a line that holds one, perhaps behind a logger's prefix (fairseq). Out: a `LogLine`. Guarantees:
numbers written as text are numbers; ``NaN``, ``Infinity`` and Python's ``nan`` are values; ``null`` was not logged;
objects inside objects become names with slashes; lists, texts and truth values are no metrics.

Closes a JSON document that ends in the middle, as one does whose writer was killed or whose disk was full.

In: a text that begins as one. Out: the text up to its last whole row, with every bracket closed. Guarantees: one pass;
nothing is made up, and half a row is no row.

Finds the lines in which the rows of a document begin.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from mlflow_stability.importers.assemble.data_splits import held_out_in_row, measured_on
from mlflow_stability.importers.assemble.long_format import name_and_value
from mlflow_stability.importers.assemble.step_names import (
    AGES_AGO,
    counts_within_epochs,
    is_epoch,
    is_time,
    per_second,
    step_name,
)
from mlflow_stability.importers.decode import as_json
from mlflow_stability.importers.files.ray_result import chosen
from mlflow_stability.importers.text.log_line import LogLine

_DEEPEST = 6
_LONG = 10_000
_NUMBER = re.compile(r"\s*[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf|infinity)\s*", re.I)


def json_line(line: str) -> LogLine | None:
    """The values of a line that is a JSON object, or ends with one."""
    start = line.find("{")
    if start < 0 or not line.rstrip().endswith("}"):
        return None
    row = _object(line[start:].strip())
    if row is None:
        return None
    before = line[:start].strip()
    read = log_row(row)
    if not before:
        read.form = "json_lines"
        return read
    read.form = "fairseq" if "|" in before and "num_updates" in line else "text"
    read.label = before.split("|")[-2].strip() if before.count("|") > 1 else before.split()[-1]
    return read


def log_row(row: Mapping[str, object]) -> LogLine:
    """The values of one object."""
    values = dict(_flat(row))
    if len(kept := chosen(tuple(values))) < len(values):
        values = {name: value for name, value in values.items() if name in kept}
    step, epoch, time = _plan(tuple(values))
    role = held_out_in_row(row)
    read = LogLine(form="json")
    if epoch is not None:
        read.epoch = values[epoch]
    if step is not None:
        told = values.pop(step)
        if not (role and epoch is not None and counts_within_epochs(step)):  # else it counts the batches of validation
            read.step = told
    if time is not None and values[time] > AGES_AGO:
        told = values.pop(time)
        read.time = told / per_second(told)
    one = name_and_value(tuple(key for key, value in row.items() if isinstance(value, str)), tuple(values))
    if one is not None:  # the step and the time are taken out above
        values = {str(row[one[0]]): values[one[1]]}
    read.values = {measured_on(role, name): value for name, value in values.items()} if role else values
    return read


@lru_cache(maxsize=4096)
def _plan(names: tuple[str, ...]) -> tuple[str | None, str | None, str | None]:
    """Which of these names are step, epoch and time."""
    epoch = next((name for name in names if is_epoch(name)), None)
    time = next((name for name in names if is_time(name)), None)
    return step_name(names), epoch, time


def _object(text: str) -> Mapping[str, object] | None:
    found = parsed(text)
    return found if isinstance(found, dict) else None


def parsed(text: str) -> object:
    """The value of a text in JSON, or as Python prints it; None where it is neither."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if len(text) > _LONG and "'" not in text[:_LONG]:
            return None  # JSON that is cut off
    try:
        return json.loads(as_json(text))
    except (ValueError, RecursionError):
        return None


def _flat(row: Mapping[str, object], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, float]]:
    for key, value in row.items():
        name = f"{prefix}{key}" if prefix else str(key)
        if type(value) in (float, int):
            yield name, number_in(value)
        elif isinstance(value, str):
            if _NUMBER.fullmatch(value):
                yield name, float(value)
        elif isinstance(value, dict) and depth < _DEEPEST:
            yield from _flat(value, f"{name}/", depth + 1)


def number_in(value: object) -> float:
    """A number as a floating-point one, infinite where it is too large for that; what is no number is NaN."""
    if not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


_MARKS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},]', re.DOTALL)
_CLOSING = {"[": "]", "{": "}"}


def closed(text: str) -> str | None:
    """The document without its torn end; None where nothing whole is left, or where it has an end after all."""
    open_: list[str] = []
    end, missing = 0, ""
    for found in _MARKS.finditer(text):
        mark = found[0]
        if mark in _CLOSING:
            open_.append(mark)
        elif mark == ",":
            if open_ and open_[-1] == "[" and "[{" not in "".join(open_):  # numbers, as Keras lists them by name
                end, missing = found.start(), "".join(open_)
        elif mark in "]}":
            if not open_ or _CLOSING[open_.pop()] != mark:
                return None
            if mark == "}" and open_ and open_[-1] == "[" and "[{" not in "".join(open_):
                end, missing = found.end(), "".join(open_)
    if not open_ or not end:
        return None
    return text[:end] + "".join(_CLOSING[each] for each in reversed(missing))


_LIST_OF_OBJECTS = re.compile(r"\[\s*(?=\{)")
_BETWEEN = re.compile(r"\s*,?\s*")
_DECODER = json.JSONDecoder()


def row_lines(text: str, lists: Sequence[Sequence[Mapping[str, object]]]) -> list[list[int]]:
    """The lines of a document in which the rows of these lists begin, the lists in the order in which they stand there.

    None where the document has one line, or a list is not found. A row is told by its names; those that stand in the
    list where the first one is are decoded once more.
    """
    if not lists or not all(lists) or text.count("\n") < sum(map(len, lists)):
        return []
    found, at = [], 0
    for rows in lists:
        places = next(
            filter(None, (_places(text, each.end(), rows) for each in _LIST_OF_OBJECTS.finditer(text, at))), []
        )
        if not places:
            return []
        lines = [1 + text.count("\n", 0, places[0])]
        for before, place in pairwise(places):
            lines.append(lines[-1] + text.count("\n", before, place))
        found.append(lines)
        at = places[-1] + 1
    return found


def _places(text: str, at: int, rows: Sequence[Mapping[str, object]]) -> list[int]:
    """Where each of these rows begins in the list that begins here; none where the list holds others."""
    places = []
    try:
        for row in rows:
            found, end = _DECODER.raw_decode(text, at)
            if not isinstance(found, dict) or list(found) != list(row):
                return []
            places.append(at)
            at = _BETWEEN.match(text, end).end()  # type: ignore[union-attr]  # it matches nothing, too
    except (ValueError, RecursionError):
        return []
    return places
