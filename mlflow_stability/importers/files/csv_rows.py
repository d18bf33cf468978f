"""Puts the lines of a table together to rows: one line each, unless a quoted cell holds the end of a line.

In: lines. Out: rows, each with the number of the line in which it begins. Guarantees: comments and blank lines are no
rows, unless a quoted cell holds them; a quote that is never closed swallows no other row; one pass with bounded memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

MOST_LINES = 500
LONGEST = 100_000
"""A quote that is not closed within so many lines and characters is one that is never closed; `csv` reads 131,072."""


def rows_of(lines: Iterable[str], separator: str) -> Iterator[tuple[int, str]]:
    """The rows of a table, and where each of them begins, counted from 1."""
    numbered = enumerate(lines, 1)
    ahead: deque[tuple[int, str]] = deque()
    while (found := ahead.popleft() if ahead else next(numbered, None)) is not None:
        at, line = found
        if not line.strip() or line.startswith("#"):
            continue
        if '"' in line and line.count('"') % 2:
            more = _rest_of(line, separator, ahead, numbered)
            line = "\n".join([line, *more]) if more else line.replace('"', "")
        yield at, line


def _rest_of(
    line: str, separator: str, ahead: deque[tuple[int, str]], numbered: Iterator[tuple[int, str]]
) -> list[str]:
    """The lines that belong to a row whose first line this is; none where it ends, or where its quote never does."""
    inside = _ends_inside(line, separator, inside=False)
    rest: list[str] = []
    size = len(line)
    while inside and len(rest) < MOST_LINES and size <= LONGEST:
        place = len(rest)
        if place == len(ahead):
            following = next(numbered, None)
            if following is None:
                return []
            ahead.append(following)
        rest.append(ahead[place][1])
        size += len(rest[-1]) + 1
        inside = _ends_inside(rest[-1], separator, inside=True)
    if inside is not False or size > LONGEST:
        return []
    for _ in rest:
        ahead.popleft()
    return rest


def _ends_inside(line: str, separator: str, *, inside: bool) -> bool | None:
    """Whether a line ends within a quoted cell, if it begins so; None where a quote stands where none can."""
    place, end = 0, len(line)
    while True:
        if not inside:
            while place < end and line[place] == " ":
                place += 1
            if place == end or line[place] != '"':
                place = line.find(separator, place) + 1
                if not place:
                    return False
                continue
            place += 1
        place = line.find('"', place)
        if place < 0:
            return True
        if line.startswith('""', place):
            inside, place = True, place + 2
            continue
        rest = line[place + 1 :].lstrip(" ")
        if not rest:
            return False
        if not rest.startswith(separator):
            return None
        inside, place = False, end - len(rest) + 1
