"""Reads many lines at once that look like lines that were understood before.

In: a block of whole lines, and the kinds of lines that are known. Out: the numbers of each line, or the line itself
where it is of no such kind. Guarantees: what is read from a line is what `LinePatterns` reads from it, or a ValueError
where that may not be so; a kind of line is read this way only if it names its step, and if its words say nothing but
names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.importers.text.line_pattern import EPOCH, NUMBER, STEP, TOTAL, KnownLine

MOST_KINDS = 8
"""So many kinds of lines at most are looked for in a block."""
_OF_NUMBERS = "-+.0123456789eEnaifNAIFty"
_ANY_NUMBER = f"([{_OF_NUMBERS}]+)"
"""Whatever `float` takes and more; many times faster than `NUMBER`, and the same where something else follows."""
_OTHER_LINE = r"([^\n]*\n)"


@dataclass(frozen=True, slots=True)
class KindOfLine:
    """One of the kinds that a block is read by."""

    known: KnownLine
    first: int
    """Which group of the expression is its first."""
    step: int
    """Which group is its step."""
    epoch: int | None
    total: int | None
    values: tuple[tuple[str, int], ...]
    """Its metrics, and which group each of them is."""


@dataclass(frozen=True, slots=True)
class LineBlocks:
    """Reads blocks by a few kinds of lines."""

    expression: re.Pattern[str]
    kinds: tuple[KindOfLine, ...]

    def rows(self, block: str) -> list[tuple[str, ...]]:
        """A tuple for each line of a block, its groups, the last of which is a line of no such kind."""
        found: list[tuple[str, ...]] = self.expression.findall(block)
        return found

    def kind_of(self, row: tuple[str, ...]) -> KindOfLine:
        """The kind of a line that is of one."""
        return next(each for each in self.kinds if row[each.step])

    def numbers(self, row: tuple[str, ...]) -> tuple[str, ...]:
        """What the groups of its kind hold, as `LinePatterns` gives them."""
        kind = self.kind_of(row)
        return row[kind.first : kind.first + len(kind.known.names)]


def may_be_read_in_blocks(known: KnownLine, says_more: Callable[[str], bool]) -> bool:
    """Whether lines of a kind hold numbers at a step and nothing else that matters."""
    counted = [name for name in known.names if name in (STEP, EPOCH, TOTAL)]
    sample = re.sub(r"\s+", " ", known.sample)
    return (
        STEP in counted
        and len(counted) < len(known.names)
        and len(set(known.names)) == len(known.names)
        and not says_more(sample)
    )


def line_blocks(known: Sequence[KnownLine]) -> LineBlocks | None:
    """What reads blocks by these kinds of lines; None where there is none."""
    kinds, texts, first = [], [], 0
    for each in known[:MOST_KINDS]:
        places = {name: first + at for at, name in enumerate(each.names)}
        values = tuple((name, at) for name, at in places.items() if name not in (STEP, EPOCH, TOTAL))
        kinds.append(KindOfLine(each, first, places[STEP], places.get(EPOCH), places.get(TOTAL), values))
        texts.append(_quick(each))
        first += len(each.names)
    if not kinds:
        return None
    return LineBlocks(re.compile(f"(?:{'|'.join(texts)})\n|{_OTHER_LINE}"), tuple(kinds))


def _quick(known: KnownLine) -> str:
    """An expression that matches some of the lines of a kind, those that are written as most are."""
    pieces = known.text.split(f"({NUMBER})")
    text = pieces[0]
    for piece in pieces[1:]:
        text += (_ANY_NUMBER if _ends_a_number(piece, last=piece is pieces[-1]) else f"({NUMBER})") + piece
    spaces = r"[ \t]+" if "\t" in known.sample else " +"
    return text.replace(r"\s+", spaces).replace(r"\d+", "[0-9]+")


def _ends_a_number(piece: str, *, last: bool) -> bool:
    """Whether what follows a number is nothing that could be part of it."""
    if not piece:
        return last
    following = piece[1] if piece[0] == "\\" else piece[0]
    return piece.startswith(r"\s+") or not (following in f"{_OF_NUMBERS}," or piece.startswith(r"\d+"))


@dataclass(frozen=True, slots=True, eq=False)
class BlockValues:
    """The numbers of lines that follow one upon the other."""

    steps: NDArray[np.float64]
    epochs: NDArray[np.float64]
    """Not-a-number where a line names none."""
    totals: NDArray[np.float64]
    columns: dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]
    """For each metric the places of its lines among these, and its values."""


def values_of(blocks: LineBlocks, rows: Sequence[tuple[str, ...]]) -> BlockValues:
    """The numbers of lines that are all of a known kind; a ValueError where something looked like a number only."""
    groups = list(zip(*rows, strict=True))
    steps, epochs, totals = (np.full(len(rows), np.nan) for _ in range(3))
    parts: dict[str, list[tuple[NDArray[np.int64], NDArray[np.float64]]]] = {}
    for kind in blocks.kinds:
        mine = np.fromiter(map(bool, groups[kind.step]), bool, len(rows))
        places = np.flatnonzero(mine)
        if not len(places):
            continue
        every = len(places) == len(rows)

        def numbers(group: int, every: bool = every, places: NDArray[np.int64] = places) -> NDArray[np.float64]:
            texts = groups[group] if every else filter(None, groups[group])
            return np.fromiter(map(float, texts), np.float64, len(places))

        steps[places] = numbers(kind.step)
        if kind.epoch is not None:
            epochs[places] = numbers(kind.epoch)
        if kind.total is not None:
            totals[places] = numbers(kind.total)
        for name, group in kind.values:
            parts.setdefault(name, []).append((places, numbers(group)))
    return BlockValues(steps, epochs, totals, {name: _in_order(found) for name, found in parts.items()})


def _in_order(
    parts: list[tuple[NDArray[np.int64], NDArray[np.float64]]],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    if len(parts) == 1:
        return parts[0]
    places, values = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.argsort(places, kind="stable")
    return places[order], values[order]


def carried_on(epochs: NDArray[np.float64], before: float) -> NDArray[np.float64]:
    """The epochs, each that is not known replaced by the last one that was."""
    known = np.isfinite(epochs)
    if known.all():
        return epochs
    last = np.maximum.accumulate(np.where(known, np.arange(len(epochs)), -1))
    carried: NDArray[np.float64] = np.where(last < 0, before, epochs[np.maximum(last, 0)])
    return carried


def stretches(rows: Sequence[tuple[str, ...]]) -> Iterator[tuple[int, int]]:
    """From where to where lines of known kinds follow one upon the other; an empty stretch stands before each other."""
    start = 0
    for at in [at for at, row in enumerate(rows) if row[-1]]:
        yield start, at
        start = at + 1
    yield start, len(rows)
