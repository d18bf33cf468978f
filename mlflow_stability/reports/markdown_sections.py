"""Draws sections in Markdown.

In: sections. Out: lines. Guarantees: text from a log never becomes a heading, link, table cell, code or HTML.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlflow_stability.reports.escape import markdown
from mlflow_stability.reports.sections import Row, Section, Sign


def section_lines(section: Section, level: str = "##") -> Iterator[str]:
    """Heading and rows; nothing for an empty section."""
    if not section:
        return
    if section.title:
        yield from ("", f"{level} {markdown(section.title)}")
    if section.head:
        yield from table_lines(section.head, [(_named(row), *row.cells) for row in section.rows])
    elif section.rows:
        yield ""
        yield from (_item(row, number) for number, row in enumerate(section.rows[: section.most], start=1))
    for remark in (*([section.beyond] if section.beyond else []), *section.remarks):
        yield from ("", markdown(remark))


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table with a blank line before it."""
    yield ""
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(markdown(cell) for cell in row)} |"


def _named(row: Row) -> str:
    return f"{row.label} ({row.note})" if row.note else row.label


def _item(row: Row, number: int) -> str:
    sign = f"{number}." if row.sign is Sign.NUMBER else "-"
    word = f"{row.sign.value}: " if row.sign in (Sign.PASSED, Sign.FAILED) else ""
    label = f"{markdown(row.label)}: " if row.label else ""
    note = f" ({markdown(row.note)})" if row.note else ""
    return f"{sign} {word}{label}{markdown(row.text)}{note}"
