"""Read lines that look like one that was understood before.

What a pattern reads from a line is what `pair_line` would read from it, many times faster.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mlflow_stability.importers.log_content import LogLine

NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
    r"|(?:nan|inf)(?:inity)?)"
)
MAX_PATTERNS = 64  # a log has a few kinds of lines
_MAX_CANDIDATES = 64 * MAX_PATTERNS
STEP, EPOCH, TOTAL = COUNTERS = "\0step", "\0epoch", "\0total"
"""In place of a metric's name for a number that counts."""
_WORD = re.compile(r"[^\W\d_]+")
_VARIABLE = re.compile(r"(\d+)|(\s+)")


class LineParts:
    def __init__(self, line: str) -> None:
        self.line = line
        self.complete = True
        """Whether its values are its numbers and nothing else; else other lines like it are read in full."""
        self._numbers: dict[tuple[int, int], str] = {}
        self._names: list[tuple[int, int]] = []

    def number(self, span: tuple[int, int], name: str) -> None:
        """Add the number of a metric or, with `STEP`, `EPOCH` or `TOTAL`, of a counter; a later one replaces it."""
        self._numbers = {other: earlier for other, earlier in self._numbers.items() if earlier != name}
        self._numbers[span] = name

    def name(self, span: tuple[int, int]) -> None:
        self._names.append(span)

    def rename(self, names: dict[str, str]) -> None:
        """Give metrics other names than they have in the line."""
        self._numbers = {span: names.get(name, name) for span, name in self._numbers.items()}

    def words(self) -> str:
        """Return the words in front of the first value."""
        values = [start for (start, _), name in self._numbers.items() if name not in COUNTERS]
        return " ".join(_WORD.findall(self.line[: min(values, default=0)]))

    def pattern(self) -> tuple[str, tuple[str, ...]]:
        """Return a regular expression for lines like this one, and the name of each of its groups."""
        spans = sorted([*self._numbers, *self._names])
        pieces, end = [], 0
        for span in spans:
            pieces.append(_varying(self.line[end : span[0]]))
            text = self.line[slice(*span)]
            if span not in self._numbers:
                pieces.append(re.escape(text))
            elif self._numbers[span] in COUNTERS and text.isdigit():
                pieces.append(r"(\d+)")
            else:
                pieces.append(f"({NUMBER})")
            end = span[1]
        pieces.append(_varying(self.line[end:]))
        return "".join(pieces), tuple(self._numbers[span] for span in spans if span in self._numbers)


def _varying(text: str) -> str:
    """Return a regular expression for a text whose digits and spaces may change."""
    pieces, end = [], 0
    for match in _VARIABLE.finditer(text):
        pieces.append(re.escape(text[end : match.start()]))
        pieces.append(r"\d+" if match[1] else r"\s+")
        end = match.end()
    return "".join(pieces) + re.escape(text[end:])


@dataclass(frozen=True, slots=True, eq=False)
class KnownLine:
    pattern: re.Pattern[str]
    text: str
    """The pattern as text."""
    names: tuple[str, ...]
    """Name of each group: a metric or a counter."""
    sample: str
    """One of its lines."""
    words: str
    """The words in front of the first value."""

    def filled(self, numbers: Sequence[str]) -> LogLine:
        read = LogLine(form="text", words=self.words)
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
    def __init__(self) -> None:
        self._candidates: set[str] = set()
        self.known: list[KnownLine] = []  # the most recent first

    def read(self, line: str) -> LogLine | None:
        """Return the values of a line of a known kind."""
        for place, kind in enumerate(self.known):
            match = kind.pattern.fullmatch(line)
            if match is not None:
                if place:
                    self.known.insert(0, self.known.pop(place))
                return kind.filled(match.groups())
        return None

    def learn(self, parts: LineParts) -> None:
        """Remember a kind of line; the second line of a kind makes a pattern."""
        if not parts.complete:
            return
        text, names = parts.pattern()
        if text not in self._candidates:
            if len(self._candidates) < _MAX_CANDIDATES:
                self._candidates.add(text)
            return
        self.known.insert(0, KnownLine(re.compile(text, re.IGNORECASE), text, names, parts.line, parts.words()))
        del self.known[MAX_PATTERNS:]


def number_of(text: str) -> float:
    """Return the number that a text is; commas may separate thousands."""
    return float(text.replace(",", "") if "," in text else text)
