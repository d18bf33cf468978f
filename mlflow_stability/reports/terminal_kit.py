"""Write escaped text and sections to a terminal, in one set of styles."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.sections import Row, Section, Sign
from mlflow_stability.vocabulary.result import Finding, Severity
from mlflow_stability.vocabulary.text.phrases import capitalised, number_text

OUTCOME_STYLES = defaultdict(
    lambda: "bold red",
    healthy="bold green",
    cannot_tell="bold",
    not_found="bold",
    unstable="bold yellow",
    recovered="bold yellow",
)
"""Style of each outcome, which is always written in words too."""
SEVERITY_STYLES = {Severity.INFO: "blue", Severity.WARNING: "yellow", Severity.CRITICAL: "bold red"}
_SIGN_STYLES = {
    Sign.LEAD: "",
    Sign.ITEM: "dim",
    Sign.FOR: "green",
    Sign.NUMBER: "green",
    Sign.WARNING: "yellow",
    Sign.PASSED: "green",
    Sign.FAILED: "bold red",
}
MAX_CHARACTERS = 2000  # characters of one name or sentence; longer text is cut


@dataclass(frozen=True, slots=True)
class TerminalWriter:
    console: Console
    unicode: bool = True
    verbose: bool = False

    def text(self, text: str, style: str = "") -> Text:
        """Return text without control characters or markup, in ASCII where the terminal has no Unicode."""
        shown = plain(text, MAX_CHARACTERS)
        return Text(shown if self.unicode else shown.encode("ascii", "backslashreplace").decode("ascii"), style)

    def style(self, severity: Severity) -> str:
        return SEVERITY_STYLES[severity]

    def rule(self, title: str) -> None:
        self.console.print()
        self.console.print(
            Rule(self.text(title, "bold"), align="left", characters="─" if self.unicode else "-", style="dim")
        )

    def link(self, title: str, address: str) -> None:
        """Write a title, and an address beneath it in one line, however long, so that it can be opened."""
        if address:
            self.console.print()
            self.console.print(self.text(title, "bold"))
            self.console.print(Text.assemble("  ", self.text(address)), soft_wrap=True)

    def paragraph(self, title: str, text: str, *, names: bool = False) -> None:
        """Write a title and the text beneath it, unless that is empty; `names` from a program are not capitalised."""
        if text:
            self.console.print()
            self.console.print(self.text(title, "bold"))
            self.console.print(Padding(self.text(text if names else capitalised(text)), (0, 0, 0, 2)))

    def section(
        self,
        title: str,
        rows: Iterable[tuple[RenderableType, RenderableType]],
        *,
        space: bool = True,
        first_at_most: float = 1 / 3,
    ) -> None:
        """Write a title and rows of two columns, the second of which wraps within itself; nothing for no rows.

        The first column takes at most the share `first_at_most` of the width.
        """
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(overflow="fold", max_width=int(self.console.width * first_at_most))
        table.add_column(overflow="fold", ratio=1)
        for left, right in rows:
            table.add_row(left, right)
        if table.row_count:
            if space:
                self.console.print()
            self.console.print(self.text(title, "bold"))
            self.console.print(Padding(table, (0, 0, 0, 2)))


def draw_section(out: TerminalWriter, section: Section) -> None:
    """Write title and rows; without `verbose` the first few, and the number of others."""
    out.section(section.title, _rows(out, section))


def _rows(out: TerminalWriter, section: Section) -> Iterator[tuple[Text, Text]]:
    # One row more than a few is shown rather than announced.
    every = section.few is None or out.verbose or len(section.rows) <= section.few + 1
    shown = section.rows if every else section.rows[: section.few]
    for number, row in enumerate(shown, start=1):
        yield _row(out, row, number, section.head)
    hidden = len(section.rows) - len(shown)
    if hidden:
        yield out.text("-", "dim"), out.text(f"{hidden} more; --verbose shows them", "dim")
    for remark in section.remarks:
        yield out.text("-", "dim"), out.text(remark, "dim")


def _row(out: TerminalWriter, row: Row, number: int, head: tuple[str, ...]) -> tuple[Text, Text]:
    words = row.text
    if head:
        pairs = [(title, cell) for title, cell in zip(head[1:], row.cells, strict=True) if cell]
        words = "; ".join(f"{title} {cell}" if len(head) > 2 else cell for title, cell in pairs)
    text = out.text(words)
    if row.note:
        text = Text.assemble(text, "\n", out.text(row.note, "dim"))
    if head or row.sign is Sign.LABEL:
        return out.text(row.label), text
    sign = f"{number}." if row.sign is Sign.NUMBER else row.sign.value
    label = out.text(f"{row.label}: " if row.label else "", "bold")
    return out.text(sign, _SIGN_STYLES[row.sign]), Text.assemble(label, text)


def written(draw: Callable[[Console], None], width: int) -> str:
    """Return what `draw` shows on a console of this width, without spaces at the ends of lines."""
    text = io.StringIO()
    draw(Console(file=text, width=width, highlight=False, color_system=None, force_terminal=False))
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()).lstrip("\n")


# Bits of the dots of a braille character, from the bottom up: left column and right column.
_DOTS = np.array([[0x40, 0x04, 0x02, 0x01], [0x80, 0x20, 0x10, 0x08]]).T
_LABEL_WIDTH = 8
GUTTER = _LABEL_WIDTH + 2  # width of the labels on the left


def draw(
    steps: NDArray[np.int64],
    values: NDArray[np.float64],
    width: int,
    height: int,
    *,
    dots: bool = True,
    logarithmic: bool = False,
) -> list[str]:
    """Return a curve in `width` columns and `height` rows, and the line of steps beneath.

    `dots=False` uses plain ASCII. `logarithmic=True` draws the logarithm of values that are all positive; the labels
    stay the values' own.
    """
    finite = np.isfinite(values)
    if not finite.any():
        return ["no finite value"]
    low, high = float(values[finite].min()), float(values[finite].max())
    # Divided by 4, differences of huge values do not overflow.
    heights = np.log(values[finite]) if logarithmic else values[finite] / 4
    first, last = int(steps.min()), int(steps.max())
    per_column, per_row = (2, 4) if dots else (1, 1)
    columns, rows = (width - GUTTER) * per_column, height * per_row
    places = _column_of(steps[finite], first, last, columns)
    grid = np.zeros((rows, columns), dtype=bool)
    for column, (bottom, top) in _ranges(*_joined(places, heights, np.diff(np.flatnonzero(finite)) == 1)).items():
        grid[_row_of(bottom, heights, rows) : _row_of(top, heights, rows) + 1, column] = True
    lines = []
    for number in range(height - 1, -1, -1):
        block = grid[number * per_row : (number + 1) * per_row]
        if dots:  # a character for four rows, of which row 0 is the lowest
            bits = (block.reshape(4, -1, 2) * _DOTS[:, None, :]).sum(axis=(0, 2))
            text = "".join(chr(0x2800 + int(character)) if character else " " for character in bits)
        else:
            text = "".join("*" if lit else " " for lit in block[0])
        label = number_text(high) if number == height - 1 else number_text(low) if number == 0 else ""
        lines.append(f"{label:>{_LABEL_WIDTH}} {'┤' if dots else '|'}{text}".rstrip())
    return [*lines, axis(first, last, width)]


def axis(first: int, last: int, width: int) -> str:
    """Return the line beneath a curve: its first step at the left, its last at the right."""
    left, right = f"{first:,}", f"{last:,}"
    return " " * GUTTER + left + " " * max(1, width - GUTTER - len(left) - len(right)) + right


def mark_line(
    findings: Sequence[tuple[int, Finding]], first: int, last: int, width: int, *, unicode: bool = True
) -> Text:
    """Return the marks of numbered findings beneath a curve of these steps.

    Each finding has its number where it began and a bar to its end; bars of worse findings cover those of others.
    """
    columns = max(1, width - GUTTER)
    bar, large_number = ("━", "•") if unicode else ("=", "+")
    cells = [(" ", "")] * columns
    spans = []
    for number, finding in findings:
        ends = np.array([finding.start, max(finding.start, finding.end)])
        begin, end = _column_of(ends, first, last, columns).tolist()
        spans.append((number, finding, begin, end))
    for _, finding, begin, end in sorted(spans, key=lambda span: (span[1].severity, span[2])):
        cells[begin : end + 1] = [(bar, SEVERITY_STYLES[finding.severity])] * (end + 1 - begin)
    numbered: set[int] = set()
    for number, finding, begin, _ in spans:
        column = next((column for column in range(begin, columns) if column not in numbered), begin)
        numbered.add(column)
        cells[column] = (str(number) if number < 10 else large_number, SEVERITY_STYLES[finding.severity])
    line = Text.assemble(" " * GUTTER, *cells, no_wrap=True)
    line.rstrip()
    return line


def _column_of(steps: NDArray[np.int64], first: int, last: int, columns: int) -> NDArray[np.int64]:
    shares = (steps.astype(np.float64) - first) / max(1, last - first)
    return np.clip(shares * (columns - 1) + 1e-9, 0, columns - 1).astype(np.int64)


def _joined(
    places: NDArray[np.int64], heights: NDArray[np.float64], neighbours: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Add the points of straight lines between neighbours that are columns apart."""
    gaps = np.diff(places)
    wide = np.flatnonzero(neighbours & (gaps > 1))
    between = [places[start] + np.arange(1, gaps[start]) for start in wide]
    lines = [np.interp(line, places[[i, i + 1]], heights[[i, i + 1]]) for i, line in zip(wide, between, strict=True)]
    return np.concatenate([places, *between]), np.concatenate([heights, *lines])


def _ranges(places: NDArray[np.int64], heights: NDArray[np.float64]) -> dict[int, tuple[float, float]]:
    """Lowest and highest value of each column, joined with the neighbour's so that the curve has no holes."""
    ranges: dict[int, tuple[float, float]] = {}
    before: float | None = None
    for column in np.unique(places):
        here = heights[places == column]
        joined = here if before is None else np.append(here, (before + here[0]) / 2)
        ranges[int(column)] = (float(joined.min()), float(joined.max()))
        before = float(here[-1])
    return ranges


def _row_of(value: float, heights: NDArray[np.float64], rows: int) -> int:
    low, high = float(heights.min()), float(heights.max())
    return 0 if high == low else min(rows - 1, int((value - low) / (high - low) * rows))
