"""Writer of terminal reports: one console, one way to make text harmless, one set of styles."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.terminal_kit.marks import STYLES
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
"""How each outcome looks; it is always there in words too."""
LONGEST = 2000
"""Characters of one name or sentence; what is longer is no name."""


@dataclass(frozen=True, slots=True)
class TerminalWriter:
    """Writes harmless text to a console."""

    console: Console
    unicode: bool = True
    verbose: bool = False

    def text(self, said: str, style: str = "") -> Text:
        """Text as it may be shown: visible, without markup, in ASCII where the terminal knows no more."""
        shown = plain(said, LONGEST)
        return Text(shown if self.unicode else shown.encode("ascii", "backslashreplace").decode("ascii"), style)

    def style(self, severity: Severity) -> str:
        """How this severity looks."""
        return STYLES[severity]

    def rule(self, title: str) -> None:
        """The line that a run begins with."""
        self.console.print()
        self.console.print(
            Rule(self.text(title, "bold"), align="left", characters="─" if self.unicode else "-", style="dim")
        )

    def link(self, title: str, address: str) -> None:
        """A title, and an address beneath it in one line, however long, so that it can be opened; nothing for none."""
        if address:
            self.console.print()
            self.console.print(self.text(title, "bold"))
            self.console.print(Text.assemble("  ", self.text(address)), soft_wrap=True)

    def paragraph(self, title: str, said: str, *, names: bool = False) -> None:
        """A title, and a sentence or more beneath it, or `names` from a program; nothing for nothing."""
        if said:
            self.console.print()
            self.console.print(self.text(title, "bold"))
            self.console.print(Padding(self.text(said if names else capitalised(said)), (0, 0, 0, 2)))

    def section(
        self,
        title: str,
        rows: Iterable[tuple[RenderableType, RenderableType]],
        *,
        space: bool = True,
        first_at_most: float = 1 / 3,
    ) -> None:
        """A title, and beneath it rows of two columns, the second of which wraps within itself; nothing for no rows.

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


def written(draw: Callable[[Console], None], width: int) -> str:
    """What `draw` shows on a console of this width, as plain text without spaces at the ends of lines."""
    text = io.StringIO()
    draw(Console(file=text, width=width, highlight=False, color_system=None, force_terminal=False))
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()).lstrip("\n")
