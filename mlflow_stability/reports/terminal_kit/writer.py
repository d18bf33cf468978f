"""Write escaped text and sections to a terminal, in one set of styles."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.sections import Row, Section, Sign
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.text import capitalised

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
    """Writes escaped text to a console."""

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
        """Write the line that a run begins with."""
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
    text = out.text(_named_cells(row.cells, head[1:]) if head else row.text)
    if row.note:
        text = Text.assemble(text, "\n", out.text(row.note, "dim"))
    if head or row.sign is Sign.LABEL:
        return out.text(row.label), text
    sign = f"{number}." if row.sign is Sign.NUMBER else row.sign.value
    label = out.text(f"{row.label}: " if row.label else "", "bold")
    return out.text(sign, _SIGN_STYLES[row.sign]), Text.assemble(label, text)


def _named_cells(cells: tuple[str, ...], titles: tuple[str, ...]) -> str:
    """Each cell behind the title of its column; a single one alone."""
    pairs = zip(titles, cells, strict=True)
    return "; ".join(f"{title} {cell}" if len(titles) > 1 else cell for title, cell in pairs if cell)


def written(draw: Callable[[Console], None], width: int) -> str:
    """Return what `draw` shows on a console of this width, without spaces at the ends of lines."""
    text = io.StringIO()
    draw(Console(file=text, width=width, highlight=False, color_system=None, force_terminal=False))
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()).lstrip("\n")
