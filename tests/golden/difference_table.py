"""Differences between two sets of shapes, as a table of `case | field | before | after`.

Findings are matched by kind and first step, lines of text by their content, so that one that is new or missing does
not make all that follow differ. A change that comes again, but for numbers that do not change, is one row.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from mlflow_stability.vocabulary.text.phrases import counted

HEAD = ("case", "field", "before", "after")
CLOSE = 1e-5
"""Relative difference up to which two floats are equal: more than the rounding to six digits can make of one ulp."""
MAX_ROWS = 150
MAX_WIDTHS = (32, 40, 56, 56)
CONTEXT = 24
"""Characters that are kept of what two sentences have in common, before and after where they differ."""
SHORT = 60
"""Sentences up to this length are shown whole."""
ABSENT, WHOLE = "(none)", "(case)"


@dataclass(frozen=True)
class Difference:
    """One field of one case."""

    case: str
    field: str
    before: Any
    after: Any


class _Absent:
    """In the place of a value that one side does not have."""


_ABSENT = _Absent()


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[Difference]:
    """All fields that differ, case by case; lines of the terminal text after all others."""
    cases = [*before, *(case for case in after if case not in before)]
    result = [
        Difference(case, field, old, new)
        for case in cases
        for field, old, new in _fields(before.get(case, _ABSENT), after.get(case, _ABSENT), "")
    ]
    return sorted(result, key=lambda difference: difference.field.startswith("text"))


def table(items: list[Difference], most: int = MAX_ROWS) -> str:
    """The differences for people; empty where there are none."""
    if not items:
        return ""
    shared: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for difference in items:
        row = (difference.case, difference.field, *_shown(difference.before, difference.after))
        shared.setdefault(_change(*row[1:]), []).append(row)
    rows = [(_more(row[0][0], len(row)), *row[0][1:]) for row in list(shared.values())[:most]]
    widths = [
        min(most_wide, max(len(row[column]) for row in (HEAD, *rows))) for column, most_wide in enumerate(MAX_WIDTHS)
    ]
    printed = [_line(HEAD, widths), "-+-".join("-" * width for width in widths)]
    printed += [_line(row, widths) for row in rows]
    if len(shared) > most:
        printed.append(f"... and {len(shared) - most} more rows")
    cases = {difference.case for difference in items}
    printed.append(f"{counted(len(items), 'field')} of {counted(len(cases), 'case')} differ")
    return "\n".join(printed)


def _fields(before: Any, after: Any, field: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted({*before, *after}):
            inner = f"{field}.{name}" if field else name
            yield from _fields(before.get(name, _ABSENT), after.get(name, _ABSENT), inner)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _entries(before, after, field)
    elif not _equal(before, after):
        yield field or WHOLE, before, after


def _entries(before: list[Any], after: list[Any], field: str) -> Iterator[tuple[str, Any, Any]]:
    """What differs between two lists: objects of the same label are compared, others are missing or new.

    Plain values have their number for a label: those that replace each other are compared in order.
    """
    old, new = _labels(before), _labels(after)
    objects = any(isinstance(entry, dict) for entry in (*before, *after))
    for what, first, last, new_first, new_last in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        count = max(last - first, new_last - new_first)
        if what == "equal" or not objects:
            for place in range(count):
                item = before[first + place] if first + place < last else _ABSENT
                other = after[new_first + place] if new_first + place < new_last else _ABSENT
                name = old[first + place] if objects else first + place + 1
                yield from _fields(item, other, f"{field}[{name}]")
        else:
            yield from ((f"{field}[{old[place]}]", before[place], _ABSENT) for place in range(first, last))
            yield from ((f"{field}[{new[place]}]", _ABSENT, after[place]) for place in range(new_first, new_last))


def _labels(entries: list[Any]) -> list[str]:
    """What entries are matched by; a label that comes again is counted."""
    labels: list[str] = []
    for entry in entries:
        label = _label(entry)
        again = sum(values == label or values.startswith(f"{label} #") for values in labels)
        labels.append(f"{label} #{again + 1}" if again and isinstance(entry, dict) else label)
    return labels


def _label(entry: Any) -> str:
    if not isinstance(entry, dict):
        return json.dumps(entry, ensure_ascii=False)
    named = [str(entry[name]) for name in ("kind", "signal", "run", "label", "message") if name in entry][:1]
    step = f"@{entry['first_step']}" if "first_step" in entry else ""
    return f"{''.join(named)}{step}"


def _equal(before: Any, after: Any) -> bool:
    if {type(before), type(after)} in ({float}, {float, int}):
        return math.isclose(before, after, rel_tol=CLOSE)
    return type(before) is type(after) and bool(before == after)


def _shown(before: Any, after: Any) -> tuple[str, str]:
    """Both sides as text; of two long sentences, the part in which they differ."""
    old, new = _text(before), _text(after)
    if not (isinstance(before, str) and isinstance(after, str)) or max(len(old), len(new)) <= SHORT:
        return old, new
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    return _part(old, start, end), _part(new, start, end)


def _part(sentence: str, start: int, end: int) -> str:
    first, last = max(0, start - CONTEXT), min(len(sentence), len(sentence) - end + CONTEXT)
    return f"{'…' if first else ''}{sentence[first:last]}{'…' if last < len(sentence) else ''}"


def _text(value: Any) -> str:
    if value is _ABSENT:
        return ABSENT
    if isinstance(value, dict):
        summary = [str(value[name]) for name in ("severity", "message", "verdict") if name in value]
        return ": ".join(summary) or json.dumps(value, ensure_ascii=False, sort_keys=True)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _change(field: str, before: str, after: str) -> tuple[str, ...]:
    """What rows are shared by: the change without its numbers, where no number changes."""
    if re.findall(r"\d+", before) == re.findall(r"\d+", after):
        return tuple(re.sub(r"\d+", "0", text) for text in (field, before, after))
    return field, before, after


def _more(case: str, count: int) -> str:
    return case if count == 1 else f"{case} (+{count - 1} more)"


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    """One row; a cell that is too wide goes on in the next line."""
    parts = [textwrap.wrap(cell, width, drop_whitespace=False) for cell, width in zip(row, widths, strict=True)]
    printed = []
    for number in range(max(map(len, parts))):
        cells = [part[number] if number < len(part) else "" for part in parts]
        printed.append(" | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    return "\n".join(printed)
