"""What a format of logs is, and which formats there are.

A module of `formats` that has a `FORMAT` is a format; nothing else has to know of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path

from mlflow_stability.vocabulary.discovery import constants_of
from mlflow_stability.vocabulary.run import RunHistory


class RecognisedBy(IntEnum):
    """How surely a format is recognised; the surest is asked first."""

    MARK = 0  # the file begins with bytes that no other format begins with
    CONTENT = 1  # the document has fields that no other has
    DOCUMENT = 2  # the file as a whole is one document
    FIRST_LINES = 3  # its first lines look like it
    NOTHING = 4  # it takes any text


@dataclass(frozen=True, slots=True)
class LogFile:
    path: Path
    head: bytes
    encoding: str | None  # encoding of its text; None for a binary file

    @property
    def text(self) -> str:
        """Its first characters; empty for a binary file."""
        return self.head.decode(self.encoding, "replace") if self.encoding else ""


@dataclass(frozen=True, slots=True)
class LogFormat:
    name: str
    """As an error message lists it: "TensorBoard event files"."""
    recognised_by: RecognisedBy
    read: Callable[[LogFile], list[RunHistory] | None]
    """Return the runs in a file, None for another format; may raise `UnreadableLogError`."""
    endings: frozenset[str] = frozenset()
    """Endings of its files; in a folder, unlike a file that was named, others are not opened."""
    copies: frozenset[str] = frozenset()
    """Folders beside its file that hold the same data."""


@cache
def formats() -> tuple[LogFormat, ...]:
    """Return all formats, the surest first."""
    every = constants_of(f"{__package__}.formats", "FORMAT", LogFormat)
    return tuple(sorted(every, key=lambda log_format: (log_format.recognised_by, log_format.name)))
