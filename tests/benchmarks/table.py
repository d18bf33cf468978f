"""Result of a benchmark: titled rows, printed as a table and written as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a benchmark."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    """Lines printed below the table."""

    def __str__(self) -> str:
        cells = [[shown(cell) for cell in row] for row in self.rows]
        widths = [max(map(len, column)) for column in zip(self.columns, *cells, strict=True)]
        is_text = [any(isinstance(row[at], str) for row in self.rows) for at in range(len(self.columns))]
        lines = [self.title, "-" * len(self.title)] if self.title else []
        for line in [self.columns, *cells] if self.rows else []:
            padded = (
                text.ljust(width) if left else text.rjust(width)
                for text, width, left in zip(line, widths, is_text, strict=True)
            )
            lines.append("  ".join(padded).rstrip())
        return "\n".join([*lines, *self.notes])


def table_of(title: str, rows: Iterable[Mapping[str, Cell]], notes: Sequence[str] = ()) -> Table:
    """Make a table of rows that may lack some of the columns."""
    rows = list(rows)
    columns = tuple(dict.fromkeys(name for row in rows for name in row))
    return Table(title, columns, tuple(tuple(row.get(name) for name in columns) for row in rows), tuple(notes))


def shown(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}" if abs(cell) < 100 else f"{cell:.0f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def share(part: int, whole: int) -> str:
    """Return `part` of `whole` in percent, or nothing where there is no whole."""
    return f"{part / whole:.1%} ({part}/{whole})" if whole else ""
