"""Tables of benchmarks in the manual.

`<!-- benchmark: NAME -->` and `<!-- end -->` enclose the first table of a benchmark, with its notes, the date, the
machine and the versions. `<!-- benchmark: NAME 2: a, b -->` encloses the columns a and b of the second one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.table import Table, shown

MANUAL = Path(__file__).parents[2] / "mlflow_stability" / "manual"
BLOCK = re.compile(
    r"(?P<start><!-- benchmark: (?P<name>\w+)(?: (?P<number>\d+))?(?:: (?P<columns>[^\n]+?))? -->\n)"
    r"(?P<content>.*?)(?P<end><!-- end -->)",
    re.DOTALL,
)


def renewed(text: str, tables: Mapping[str, Sequence[Table]], measured: str) -> str:
    """Return a page with the tables of these benchmarks replaced; everything else stays as it is."""

    def block(match: re.Match[str]) -> str:
        if match["name"] not in tables:
            return match[0]
        table = tables[match["name"]][int(match["number"] or 1) - 1]
        lines = markdown(table, columns_of(match) or table.columns)
        below = " ".join(f"{note.removesuffix('.')}." for note in (*table.notes, measured))
        return "\n".join([match["start"], *lines, "", below, "", match["end"]])

    return BLOCK.sub(block, text)


def columns_of(match: re.Match[str]) -> tuple[str, ...]:
    """Return the columns that a marker asks for; empty: all."""
    return tuple(match["columns"].split(", ")) if match["columns"] else ()


def markdown(table: Table, columns: Sequence[str]) -> list[str]:
    places = [table.columns.index(column) for column in columns]
    rows = [[shown(row[place]).replace("|", r"\|") for place in places] for row in table.rows]
    return [f"| {' | '.join(cells)} |" for cells in [list(columns), ["---"] * len(columns), *rows]]


def write(tables: Mapping[str, Sequence[Table]], measured: str, folder: Path = MANUAL) -> list[Path]:
    """Renew the pages that have these tables and return their paths."""
    changed = []
    for page in sorted(folder.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if any(match["name"] in tables for match in BLOCK.finditer(text)):
            page.write_text(renewed(text, tables, measured), encoding="utf-8")
            changed.append(page)
    return changed
