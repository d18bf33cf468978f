"""What a format of logs is, and which of them there are.

A module of `formats` that has a `FORMAT` is a format; nothing else has to know of it. In: how a file begins. Out: the
runs in it. Guarantees: a format that does not know a file says so by None, and the next one is asked; those that a mark
of their own gives away are asked before those that are told by their shape.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib import import_module
from pathlib import Path

from mlflow_stability.vocabulary.run import RunHistory


class RecognisedBy(IntEnum):
    """How surely a format is told from others; the surest is asked first."""

    MARK = 0
    """The file begins with bytes that nothing else begins with."""
    CONTENT = 1
    """The file is a document that has what nothing else has."""
    DOCUMENT = 2
    """The file as a whole is one document."""
    FIRST_LINES = 3
    """Its first lines look like it."""
    NOTHING = 4
    """It takes any text."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A file, and how it begins."""

    path: Path
    head: bytes
    encoding: str | None
    """How its text is encoded; None: it is no text."""

    @property
    def text(self) -> str:
        """Its first characters; empty where it is no text."""
        return self.head.decode(self.encoding, "replace") if self.encoding else ""


@dataclass(frozen=True, slots=True)
class LogFormat:
    """One format."""

    name: str
    """As an error message lists it: "TensorBoard event files"."""
    told_by: RecognisedBy
    read: Callable[[Opening], list[RunHistory] | None]
    """The runs in a file; None: it is of another format. Both may raise `UnreadableLogError`."""
    endings: frozenset[str] = frozenset()
    """How the names of such files end; in a folder, unlike a file that was named, others are not even opened."""
    copies: frozenset[str] = frozenset()
    """Folders beside such a file that hold nothing but what it says too."""


@cache
def formats() -> tuple[LogFormat, ...]:
    """All formats, in the order in which they are asked."""
    room = import_module(f"{__package__}.formats")
    modules = (import_module(f"{room.__name__}.{each.name}") for each in pkgutil.iter_modules(room.__path__))
    found = [each for module in modules if isinstance(each := getattr(module, "FORMAT", None), LogFormat)]
    return tuple(sorted(found, key=lambda each: (each.told_by, each.name)))
