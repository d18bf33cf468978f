"""Compares what a test may change in its process with what it was before, and puts it back.

In: parts of the process, each with a way to read it and one to put it back. Out: the changes since a snapshot, one
sentence each. A part of a library is read only where the library has been imported, and compared only where it had been
imported before the test, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MANY = 200
"""Number of characters of a value that are shown."""


@dataclass(frozen=True, eq=False)
class Part:
    """One thing of the process: how it is read, and how it is put back."""

    name: str
    read: Callable[[], Any]
    put_back: Callable[[Any], object]
    module: str = "sys"
    """Which has to be imported for it to be read."""
    grows: bool = False
    """Whether a key that was not there before is no change."""
    shrinks: bool = False
    """Whether an item that is not there any more is no change: what an earlier test left may end."""


Snapshot = Mapping[Part, Any]


def snapshot(parts: tuple[Part, ...]) -> Snapshot:
    """What each part is now."""
    return {part: part.read() for part in parts if part.module in sys.modules}


def changes(before: Snapshot, after: Snapshot) -> list[tuple[Part, str]]:
    """The parts that differ, and how."""
    values = []
    for part, was in before.items():
        if part in after and after[part] != was:
            now = {key: after[part][key] for key in was if key in after[part]} if part.grows else after[part]
            now = now | was if part.shrinks else now
            if was != now:
                values.append((part, f"{part.name}: {'; '.join(_difference(was, now))}"))
    return values


def put_back(before: Snapshot, changed: list[tuple[Part, str]]) -> None:
    """Make these parts what they were."""
    for part, _ in changed:
        part.put_back(before[part])


def _difference(before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            if key not in after:
                yield f"{key!r} was removed"
            elif key not in before:
                yield f"{key!r} was added: {_short(after[key])}"
            elif before[key] != after[key]:
                yield f"{key!r} was {_short(before[key])} and is {_short(after[key])}"
    elif isinstance(before, (tuple, frozenset)) and isinstance(after, (tuple, frozenset)):
        yield from (f"{_short(value)} was removed" for value in before if value not in after)
        yield from (f"{_short(value)} was added" for value in after if value not in before)
        if set(before) == set(after):
            yield "the same in another order or number"
    else:
        yield f"was {_short(before)} and is {_short(after)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MANY else f"{text[:MANY]} …"
