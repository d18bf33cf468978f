"""Read rows that are JSON objects, or dictionaries as Python prints them.

Numbers written as text are numbers; `NaN`, `Infinity` and Python's `nan` are values, `null` was not logged; objects
inside objects become names with slashes; lists, texts and booleans are no metrics.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from mlflow_stability.importers.field_names import (
    MIN_ABSOLUTE_TIME,
    counts_within_epochs,
    held_out_in_row,
    is_epoch,
    is_time,
    long_format,
    metric_names,
    step_name,
    units_per_second,
    with_split,
)
from mlflow_stability.importers.log_content import LogLine

_MAX_DEPTH = 6
_LONG_TEXT = 10_000
_NUMBER = re.compile(r"\s*[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf|infinity)\s*", re.I)

_SCALAR = re.compile(r"\b(?:(?:np|numpy|jnp|torch|tf)\.)?(?:float|int|uint|bfloat|longlong)\d*\(([^()\[\]]*)\)")
_TENSOR = re.compile(r"\b(?:tf\.)?[Tt]ensor\(([^,()\[\]]*)[^()]*\)|<tf\.Tensor: [^<>]*?numpy=([^<>,\[\]]*)>")
_ARRAY = re.compile(r"\b(?:(?:np|numpy|jnp|torch)\.)?(?:array|Array|tensor)\((\[[^()]*\])[^()\[\]]*\)")
_DEFAULTDICT = re.compile(r"\s*(?:collections\.)?defaultdict\(<class '\w+'>, (\{.*\})\)\s*", re.DOTALL)
_TOKEN = re.compile(
    r"""[uUbBrR]?'((?:[^'\\\n]|\\.)*)'?   # a text in single quotes; one that is never closed ends with its line
    |[uUbBrR]?("(?:[^"\\\n]|\\.)*"?)      # one in double quotes
    |(-?\b(?:nan|inf)\b|\b(?:None|True|False)\b)
    |([()])""",
    re.VERBOSE,
)
_WORDS = {"None": "null", "True": "true", "False": "false", "nan": "NaN", "-nan": "NaN", "inf": "Infinity"}
_NUMBER_AS_KEY = re.compile(r"([{,]\s*)(-?\d+)(?=\s*:)")
_BARE_POINT = re.compile(r"(?<![\w.])(\d+)\.(?=[\s,\])}e])")
_COMMA_AT_END = re.compile(r",(\s*[\]}])")

_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},]', re.DOTALL)
_CLOSING = {"[": "]", "{": "}"}
_LIST_OF_OBJECTS = re.compile(r"\[\s*(?=\{)")
_BETWEEN_ROWS = re.compile(r"\s*,?\s*")
_DECODER = json.JSONDecoder()


def json_line(line: str) -> LogLine | None:
    """Return the values of a line that is a JSON object, or ends with one, as lines of fairseq do."""
    start = line.find("{")
    if start < 0 or not line.rstrip().endswith("}"):
        return None
    row = parse_value(line[start:].strip())
    if not isinstance(row, dict):
        return None
    prefix = line[:start].strip()
    read = log_row(row)
    if not prefix:
        read.form = "json_lines"
        return read
    read.form = "fairseq" if "|" in prefix and "num_updates" in line else "text"
    read.label = prefix.split("|")[-2].strip() if prefix.count("|") > 1 else prefix.split()[-1]
    return read


def log_row(row: Mapping[str, object]) -> LogLine:
    values = dict(_flat(row))
    wanted = metric_names(tuple(values))
    if len(wanted) < len(values):
        values = {name: value for name, value in values.items() if name in wanted}
    step, epoch, time = _clock_names(tuple(values))
    split = held_out_in_row(row)
    read = LogLine(form="json")
    if epoch is not None:
        read.epoch = values[epoch]
    if step is not None:
        number = values.pop(step)
        counts_batches_of_validation = split and epoch is not None and counts_within_epochs(step)
        if not counts_batches_of_validation:
            read.step = number
    if time is not None and values[time] > MIN_ABSOLUTE_TIME:
        number = values.pop(time)
        read.time = number / units_per_second(number)
    # Step and time are no longer among the values.
    fields = long_format(tuple(key for key, value in row.items() if isinstance(value, str)), tuple(values))
    if fields is not None:
        values = {str(row[fields[0]]): values[fields[1]]}
    read.values = {with_split(split, name): value for name, value in values.items()} if split else values
    return read


@lru_cache(maxsize=4096)
def _clock_names(names: tuple[str, ...]) -> tuple[str | None, str | None, str | None]:
    epoch = next((name for name in names if is_epoch(name)), None)
    time = next((name for name in names if is_time(name)), None)
    return step_name(names), epoch, time


def _flat(row: Mapping[str, object], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, float]]:
    for key, value in row.items():
        name = f"{prefix}{key}" if prefix else str(key)
        if type(value) in (float, int):
            yield name, number_in(value)
        elif isinstance(value, str):
            if _NUMBER.fullmatch(value):
                yield name, float(value)
        elif isinstance(value, dict) and depth < _MAX_DEPTH:
            yield from _flat(value, f"{name}/", depth + 1)


def number_in(value: object) -> float:
    """Return a number as a float, infinite where it is too large; NaN for anything else."""
    if not isinstance(value, int | float):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def parse_value(text: str) -> object:
    """Return the value of a text in JSON, or as Python prints it; None where it is neither."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if len(text) > _LONG_TEXT and "'" not in text[:_LONG_TEXT]:
            return None  # JSON that is truncated
    try:
        return json.loads(_as_json(text))
    except (ValueError, RecursionError):
        return None


def _as_json(text: str) -> str:
    """Rewrite what Python prints as JSON: `{'loss': [0.5, nan], 'lr': np.float64(0.1)}`.

    Evaluates nothing; time and memory are linear in the text. Whether the result is JSON, the parser decides.
    """
    if "(" in text:
        default_dict = _DEFAULTDICT.fullmatch(text)
        text = _SCALAR.sub(r"\1", text if default_dict is None else default_dict[1])
        text = _TENSOR.sub(lambda match: match[1] or match[2] or "null", _ARRAY.sub(r"\1", text))
    text = _BARE_POINT.sub(r"\1.0", text)
    return _COMMA_AT_END.sub(r"\1", _NUMBER_AS_KEY.sub(r'\1"\2"', _TOKEN.sub(_json_token, text)))


def _json_token(match: re.Match[str]) -> str:
    single, double, word, bracket = match.groups()
    if single is not None:
        return json.dumps(single.replace("\\'", "'"), ensure_ascii=False)
    if double is not None:
        return str(double)
    if word is not None:
        return _WORDS.get(word, "-Infinity")
    return "[" if bracket == "(" else "]"


def close_document(text: str) -> str | None:
    """Return a truncated document up to its last whole row, with every bracket closed.

    None where nothing whole is left, or where the document is not truncated.
    """
    open_brackets: list[str] = []
    end, missing = 0, ""
    for match in _BRACKETS.finditer(text):
        mark = match[0]
        if mark in _CLOSING:
            open_brackets.append(mark)
        elif mark == ",":
            if _in_outer_list(open_brackets):  # numbers, as Keras lists them by name
                end, missing = match.start(), "".join(open_brackets)
        elif mark in "]}":
            if not open_brackets or _CLOSING[open_brackets.pop()] != mark:
                return None
            if mark == "}" and _in_outer_list(open_brackets):
                end, missing = match.end(), "".join(open_brackets)
    if not open_brackets or not end:
        return None
    return text[:end] + "".join(_CLOSING[bracket] for bracket in reversed(missing))


def _in_outer_list(open_brackets: Sequence[str]) -> bool:
    """Whether a place is in a list, and in no object of a list."""
    return bool(open_brackets) and open_brackets[-1] == "[" and "[{" not in "".join(open_brackets)


def row_lines(text: str, lists: Sequence[Sequence[Mapping[str, object]]]) -> list[list[int]]:
    """Return the first line of each row of these lists, which are in the order of the document.

    Empty where the document has one line, or a list is not found. A row is recognised by its names.
    """
    if not lists or not all(lists) or text.count("\n") < sum(map(len, lists)):
        return []
    numbers, start = [], 0
    for rows in lists:
        candidates = (_row_places(text, match.end(), rows) for match in _LIST_OF_OBJECTS.finditer(text, start))
        places = next(filter(None, candidates), [])
        if not places:
            return []
        lines = [1 + text.count("\n", 0, places[0])]
        for before, place in pairwise(places):
            lines.append(lines[-1] + text.count("\n", before, place))
        numbers.append(lines)
        start = places[-1] + 1
    return numbers


def _row_places(text: str, place: int, rows: Sequence[Mapping[str, object]]) -> list[int]:
    """Return where each of these rows begins in the list that begins here; none where the list holds others."""
    places = []
    try:
        for row in rows:
            value, end = _DECODER.raw_decode(text, place)
            if not isinstance(value, dict) or list(value) != list(row):
                return []
            places.append(place)
            place = _BETWEEN_ROWS.match(text, end).end()  # type: ignore[union-attr]  # it matches nothing, too
    except (ValueError, RecursionError):
        return []
    return places
