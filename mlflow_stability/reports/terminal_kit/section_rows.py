"""Draws sections on a terminal: two columns, of which the second wraps within itself."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from mlflow_stability.reports.sections import Row, Section, Sign
from mlflow_stability.reports.terminal_kit.writer import TerminalWriter

STYLES = {
    Sign.LEAD: "",
    Sign.ITEM: "dim",
    Sign.FOR: "green",
    Sign.NUMBER: "green",
    Sign.WARNING: "yellow",
    Sign.PASSED: "green",
    Sign.FAILED: "bold red",
}
"""How each sign looks; it is always there in characters too."""


def draw_section(out: TerminalWriter, section: Section) -> None:
    """Title and rows; without `verbose` the first few, and how many more there are."""
    out.section(section.title, _rows(out, section))


def more(out: TerminalWriter, hidden: int) -> Iterator[tuple[Text, Text]]:
    """The row that says how many are not shown."""
    if hidden > 0:
        yield out.text("-", "dim"), out.text(f"{hidden} more; --verbose shows them", "dim")


def _rows(out: TerminalWriter, section: Section) -> Iterator[tuple[Text, Text]]:
    every = section.few is None or out.verbose or len(section.rows) <= section.few + 1
    shown = section.rows if every else section.rows[: section.few]
    for number, row in enumerate(shown, start=1):
        yield _row(out, row, number, section.head)
    yield from more(out, len(section.rows) - len(shown))
    for remark in section.remarks:
        yield out.text("-", "dim"), out.text(remark, "dim")


def _row(out: TerminalWriter, row: Row, number: int, head: tuple[str, ...]) -> tuple[Text, Text]:
    text = out.text("; ".join(_named(row.cells, head[1:])) if head else row.text)
    if row.note:
        text = Text.assemble(text, "\n", out.text(row.note, "dim"))
    if head or row.sign is Sign.LABEL:
        return out.text(row.label), text
    sign = f"{number}." if row.sign is Sign.NUMBER else row.sign.value
    label = out.text(f"{row.label}: " if row.label else "", "bold")
    return out.text(sign, STYLES[row.sign]), Text.assemble(label, text)


def _named(cells: tuple[str, ...], titles: tuple[str, ...]) -> Iterator[str]:
    """Each cell behind the title of its column; a single one alone."""
    for title, cell in zip(titles, cells, strict=True):
        if cell:
            yield f"{title} {cell}" if len(titles) > 1 else cell
