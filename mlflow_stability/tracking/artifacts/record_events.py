"""What happened in a run beside numbers, as lines of JSON that people and programs read.

In: events, resets, gaps, notes, facts, the opening and the closing of a recording, in order. Out: one JSON object a
line in `stability/data/events/recording-<n>.jsonl`; `record` says what it is, the rest are its fields. Numbers that
JSON has not are the strings "nan", "inf" and "-inf". Guarantees: `read_line(line_of(said)) == said`; a line that is no
such object is a ``ValueError``, whatever is wrong with it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any, TypeAlias

from mlflow_stability.kinds.finding_records import as_record, from_record
from mlflow_stability.vocabulary.result import Finding
from mlflow_stability.vocabulary.run import Closing, Fact, Gap, Note, Opening, Reset

LINES_PER_FILE = 10_000
Said: TypeAlias = Finding | Opening | Note | Fact | Reset | Gap | Closing

_KINDS: dict[str, type[Any]] = {
    "opening": Opening,
    "event": Finding,
    "note": Note,
    "fact": Fact,
    "reset": Reset,
    "gap": Gap,
    "closing": Closing,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_FILE = re.compile(r"recording-(\d{3,})(?:-(\d+))?\.jsonl")


def events_name(recording: int, number: int = 0) -> str:
    """The file of a recording's events; a second and further ones hold what is beyond `LINES_PER_FILE`."""
    return f"recording-{recording:03d}.jsonl" if number == 0 else f"recording-{recording:03d}-{number + 1}.jsonl"


def bookkeeping_name(recording: int) -> str:
    """The file of what a recording knows of itself beside that."""
    return f"recording-{recording:03d}.json"


def events_order(name: str) -> tuple[int, int] | None:
    """Recording and number of a file, by which files are sorted; None if it is something else."""
    found = _FILE.fullmatch(name)
    return (int(found[1]), int(found[2] or 1)) if found else None


def line_of(said: Said) -> str:
    """One line, its newline included."""
    plain = as_record(said) if isinstance(said, Finding) else asdict(said)
    known = {name: _plain(value) for name, value in plain.items()}
    return json.dumps({"record": _NAMES[type(said)], **known}, ensure_ascii=False, allow_nan=False) + "\n"


def lines_in(text: str) -> list[str]:
    """The lines of such a file, without their newlines.

    JSON keeps other characters that end a line for `str.splitlines` (U+0085, U+2028, U+2029) as they are, so a message
    can hold them.
    """
    return text.removesuffix("\n").split("\n") if text else []


def read_line(line: str) -> Said | None:
    """What a line says; None if a later version wrote something that this one does not know."""
    try:
        return _said(json.loads(line))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"Not an event line: {error!r}") from error


def _said(known: dict[str, Any]) -> Said | None:
    kind = _KINDS.get(known.pop("record", ""))
    if kind is None:
        return None
    if kind is Finding:
        return from_record(known)
    names = {each.name: each.type for each in fields(kind)}
    known = {name: _READ.get(str(names[name]), _as_it_is)(value) for name, value in known.items() if name in names}
    said: Said = kind(**known)
    return said


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not an integer")
    return value


def _as_it_is(value: Any) -> Any:
    return value


_READ: Mapping[str, Callable[[Any], Any]] = {"float": float, "int": _whole}


def _plain(value: Any) -> Any:
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
