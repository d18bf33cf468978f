"""Reads the tables that notebooks show: Hugging Face's trainer, fastai, a DataFrame of a history.

In: HTML. Out: the rows of each table as names with what their cells say. Guarantees: nothing in the page is run, loaded
or followed; time is linear in the page.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

LONGEST = 5_000_000
"""A longer page is a plot."""
_TABLE = re.compile(r"<table\b", re.IGNORECASE)
_END = re.compile(r"</table\b", re.IGNORECASE)
_ROW = re.compile(r"<tr\b[^<>]*>", re.IGNORECASE)
_CELL = re.compile(r"<t[hd]\b[^<>]*>", re.IGNORECASE)
_TAG = re.compile(r"<[^<>]*>")


def tables_in(page: str) -> Iterator[list[dict[str, str]]]:
    """The tables of a page, each as its rows; a table without a row of names has none."""
    if len(page) > LONGEST:
        return
    for part in _TABLE.split(page)[1:]:
        rows = [_cells(row) for row in _ROW.split(_END.split(part, maxsplit=1)[0])[1:]]
        if len(rows) > 1:
            names = rows[0]
            yield [
                {name: cell for name, cell in zip(names, row, strict=True) if name}
                for row in rows[1:]
                if len(row) == len(names)
            ]


def _cells(row: str) -> list[str]:
    return [html.unescape(_TAG.sub("", cell)).strip() for cell in _CELL.split(row)[1:]]
