"""Recognises lines that look like one that was understood before, many times faster than understanding them anew.

In: a line, and where in it its names and numbers stand. Out: a pattern: the same line with other numbers. Guarantees:
what a pattern reads from a line is what `pair_line` would have read from it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mlflow_stability.importers.text.log_line import LogLine

NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
    r"|(?:nan|inf)(?:inity)?)"
)
MOST_PATTERNS = 64
"""How many are kept; a log has a few kinds of lines."""
_COUNT = r"\d+"
STEP, EPOCH, TOTAL = "\0step", "\0epoch", "\0total"
"""What stands for the name of a number that counts."""
_VARIABLE = re.compile(r"(\d+)|(\s+)")


class LineParts:
    """Where the parts of a line stand."""

    def __init__(self, line: str) -> None:
        self.line = line
        self.whole = True
        """Whether its numbers are all that its values are made of; else other lines like it are understood anew."""
        self._numbers: dict[tuple[int, int], str] = {}
        self._names: list[tuple[int, int]] = []

    def value(self, span: tuple[int, int], name: str) -> None:
        """The number that belongs to a metric."""
        self._forget(name)
        self._numbers[span] = name

    def step(self, span: tuple[int, int]) -> None:
        """The number that is the step."""
        self.value(span, STEP)

    def total(self, span: tuple[int, int]) -> None:
        """The number that says of how many the step is."""
        self.value(span, TOTAL)

    def epoch(self, span: tuple[int, int]) -> None:
        """The number that is the epoch."""
        self.value(span, EPOCH)

    def name(self, span: tuple[int, int]) -> None:
        """A name, whose digits are part of it."""
        self._names.append(span)

    def rename(self, names: dict[str, str]) -> None:
        """Metrics are to be called otherwise than they are written."""
        self._numbers = {span: names.get(name, name) for span, name in self._numbers.items()}

    def pattern(self) -> tuple[str, tuple[str, ...]]:
        """A regular expression, and what each of its groups is."""
        spans = sorted([*self._numbers, *self._names])
        pieces, end = [], 0
        for span in spans:
            pieces.append(_varying(self.line[end : span[0]]))
            if span in self._numbers:
                counts = self._numbers[span] in (STEP, EPOCH, TOTAL)
                text = self.line[slice(*span)]
                pieces.append(f"({_COUNT})" if counts and text.isdigit() else f"({NUMBER})")
            else:
                pieces.append(re.escape(self.line[slice(*span)]))
            end = span[1]
        pieces.append(_varying(self.line[end:]))
        return "".join(pieces), tuple(self._numbers[span] for span in spans if span in self._numbers)

    def _forget(self, name: str) -> None:
        """Of two numbers with one name the later counts."""
        self._numbers = {span: known for span, known in self._numbers.items() if known != name}


@dataclass(frozen=True, slots=True, eq=False)
class KnownLine:
    """A kind of line."""

    pattern: re.Pattern[str]
    text: str
    """The pattern as text."""
    names: tuple[str, ...]
    """What each of its groups is."""
    sample: str
    """One of its lines."""

    def filled(self, numbers: Sequence[str]) -> LogLine:
        """The values of a line of this kind."""
        read = LogLine(form="text")
        for name, number in zip(self.names, numbers, strict=True):
            if name == STEP:
                read.step = number_of(number)
            elif name == EPOCH:
                read.epoch = number_of(number)
            elif name == TOTAL:
                read.total = number_of(number)
            else:
                read.values[name] = number_of(number)
        return read


class LinePatterns:
    """The kinds of lines that a log has shown so far."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self.known: list[KnownLine] = []
        """Those that came last, first."""

    def read(self, line: str) -> LogLine | None:
        """The values of a line of a known kind."""
        for place, known in enumerate(self.known):
            found = known.pattern.fullmatch(line)
            if found is not None:
                if place:
                    self.known.insert(0, self.known.pop(place))
                return known.filled(found.groups())
        return None

    def learn(self, parts: LineParts) -> None:
        """Remember a kind of line; one that is seen for the second time is worth a pattern."""
        if not parts.whole:
            return
        text, names = parts.pattern()
        if text not in self._seen:
            if len(self._seen) < MOST_PATTERNS * 64:
                self._seen.add(text)
            return
        self.known.insert(0, KnownLine(re.compile(text, re.IGNORECASE), text, names, parts.line))
        del self.known[MOST_PATTERNS:]


def number_of(text: str) -> float:
    """The number that a text is; thousands may be set apart by commas."""
    return float(text.replace(",", "") if "," in text else text)


def _varying(text: str) -> str:
    """A regular expression for a text whose digits and spaces may change."""
    return "".join(
        r"\d+" if digits else r"\s+" if spaces else re.escape(rest) for digits, spaces, rest in _pieces(text)
    )


def _pieces(text: str) -> list[tuple[str, str, str]]:
    found, end = [], 0
    for each in _VARIABLE.finditer(text):
        if each.start() > end:
            found.append(("", "", text[end : each.start()]))
        found.append((each[1] or "", each[2] or "", ""))
        end = each.end()
    if end < len(text):
        found.append(("", "", text[end:]))
    return found
