"""Marks episodes beneath a curve drawn with characters.

In: numbered episodes and the steps that the curve spans. Out: one line as wide as the curve, each episode with its
number where it began and a bar to its end; of those that share a place, the worst is seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.text import Text

from mlflow_stability.reports.terminal_kit.braille_curve import GUTTER, column_of
from mlflow_stability.vocabulary.result import Finding, Severity

STYLES = {Severity.INFO: "blue", Severity.WARNING: "yellow", Severity.CRITICAL: "bold red"}
"""How each severity looks on a terminal; each is named in words as well."""


def mark_line(
    episodes: Sequence[tuple[int, Finding]], first: int, last: int, width: int, *, unicode: bool = True
) -> Text:
    """The line of marks; the number of an episode is what it is listed under."""
    columns = max(1, width - GUTTER)
    bar, beyond = ("━", "•") if unicode else ("=", "+")
    cells: list[tuple[str, str]] = [(" ", "")] * columns
    spans = [(number, each, *_span(each, first, last, columns)) for number, each in episodes]
    worst_last = sorted(spans, key=lambda span: (span[1].severity, span[2]))
    for _, episode, begin, end in worst_last:
        cells[begin : end + 1] = [(bar, STYLES[episode.severity])] * (end + 1 - begin)
    taken: set[int] = set()
    for number, episode, begin, _ in spans:
        column = next((each for each in range(begin, columns) if each not in taken), begin)
        taken.add(column)
        cells[column] = (str(number) if number < 10 else beyond, STYLES[episode.severity])
    line = Text(" " * GUTTER, no_wrap=True)
    for character, style in cells:
        line.append(character, style)
    line.rstrip()
    return line


def _span(episode: Finding, first: int, last: int, columns: int) -> tuple[int, int]:
    begin, end = column_of(np.array([episode.start, max(episode.start, episode.end)]), first, last, columns)
    return int(begin), int(end)
