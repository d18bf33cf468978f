"""Section model of reports: terminal, Markdown and HTML draw the same titles, sentences and rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from mlflow_stability.vocabulary.result import Severity


class Sign(Enum):
    LABEL = ""  # its label alone
    ITEM = "-"
    LEAD = " "  # the sentence that the rows after it are about; its label begins it
    FOR = "+"  # evidence for a cause
    NUMBER = "1."  # rows are counted
    WARNING = "!"
    PASSED = "ok"
    FAILED = "worse"


@dataclass(frozen=True, slots=True)
class Row:
    """One sentence, or one row of a table."""

    cells: tuple[str, ...]  # sentences; in a table one for each column beside the label
    label: str = ""
    sign: Sign = Sign.ITEM
    note: str = ""  # what to type to see more: a run id or a path
    severity: Severity | None = None

    @property
    def text(self) -> str:
        return " ".join(self.cells)


@dataclass(frozen=True, slots=True)
class Section:
    """A title, and rows beneath it; a table where it has a head."""

    title: str
    rows: tuple[Row, ...] = ()
    head: tuple[str, ...] = ()  # titles of the columns, that of the labels first
    numbers: frozenset[str] = frozenset()
    few: int | None = None  # number of rows that a terminal shows without --verbose
    most: int | None = None  # number of rows that a page shows
    remarks: tuple[str, ...] = ()  # sentences about the whole section, shown beneath its rows

    def __bool__(self) -> bool:
        return bool(self.rows or self.remarks)

    @property
    def beyond(self) -> str:
        """The number of rows that a page leaves out, as a sentence; empty for none."""
        return "" if self.most is None or len(self.rows) <= self.most else f"{len(self.rows) - self.most} more."


def sentences(title: str, texts: Iterable[str], sign: Sign = Sign.ITEM, few: int | None = None) -> Section:
    return Section(title, tuple(Row((text,), sign=sign) for text in texts), few=few)


def failures(unread: Iterable[tuple[str, str]], few: int | None = None) -> Section:
    """Return the section of inputs that could not be read, each with the reason."""
    rows = (Row((" ".join(reason.split()),), source, Sign.LABEL) for source, reason in unread)
    return Section("Not read", tuple(rows), few=few)
