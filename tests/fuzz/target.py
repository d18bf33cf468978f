"""What is fed with drawn inputs: how an input is made from random numbers, and what must hold of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random


@dataclass(frozen=True, slots=True)
class Drawn:
    """One input: a file by its name and content."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Target:
    """A reader or writer of the package."""

    share: int
    """How many of a thousand inputs it gets."""
    draw: Callable[[Random], Drawn]
    check: Callable[[Drawn, Path], bool]
    """Read the input in this folder; return False where it was refused as documented, raise where anything is wrong."""


class BrokenPromiseError(AssertionError):
    """The package did something that it promises not to do."""


def promised(holds: object, what: str) -> None:
    """Raise unless it holds, under `python -O` too."""
    if not holds:
        raise BrokenPromiseError(what)


def written(drawn: Drawn, folder: Path) -> Path:
    """Write an input to its file."""
    file = folder / drawn.name
    file.write_bytes(drawn.content)
    return file


def files_of(folder: Path | None, largest: int) -> list[Path]:
    """Return the files of a folder, at any depth, that are not larger than this many bytes; in the order of names."""
    if folder is None:
        return []
    return sorted(file for file in folder.rglob("*") if file.is_file() and 0 < file.stat().st_size <= largest)
