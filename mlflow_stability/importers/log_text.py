"""Opens a text file of any usual encoding, packed or not, as lines.

In: a path. Out: its lines, one at a time. Promised: UTF-8, UTF-16 with its mark, else Latin-1; lines end with LF,
CRLF or the lone CR with which progress bars overwrite themselves; a line is never longer than 20,000 characters;
colours are taken out; nothing is read twice, and never the whole file at once.
"""

from __future__ import annotations

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.importers.harmless import reason_of, shown_path
from mlflow_stability.importers.odd_numbers import usual

HEAD = 65_536
"""How many bytes are looked at to tell what a file is."""
LONGEST_LINE = 20_000
_GZIP = b"\x1f\x8b"
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked where it is packed; what the system refuses becomes one sentence."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            with gzip.GzipFile(fileobj=raw) if packed else raw as file:
                yield cast("BinaryIO", file)
    except FileNotFoundError:
        raise UnreadableLogError(f"There is no {shown_path(path)}; check the path.") from None
    except PermissionError:
        raise UnreadableLogError(f"{shown_path(path)} may not be read by you; ask for permission to read it.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableLogError(f"{shown_path(path)} could not be read: {reason_of(error)}.") from error


def head_of(path: Path) -> bytes:
    """The first bytes of a file."""
    with opened(path) as file:
        try:
            return file.read(HEAD)
        except (EOFError, zlib.error):
            return b""


def encoding_of(head: bytes) -> str | None:
    """How a text that begins like this is encoded; None: it is no text."""
    for mark, encoding in _BOMS:
        if head.startswith(mark):
            return encoding
    if b"\0" in head:
        return None
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        odd = sum(byte < 9 or 13 < byte < 27 or 27 < byte < 32 for byte in head)
        return "latin-1" if odd * 100 <= len(head) else None
    return "utf-8"


@contextmanager
def text_of(path: Path, encoding: str) -> Iterator[TextIO]:
    """The text of a file."""
    with opened(path) as file:
        yield io.TextIOWrapper(file, encoding=encoding, errors="replace", newline=None)


def lines_of(text: TextIO) -> Iterator[str]:
    """Its lines, without their ends."""
    while line := text.readline(LONGEST_LINE):
        yield plain(line)
        while not line.endswith("\n") and line:  # the rest of an endless line is nobody's number
            line = text.readline(LONGEST_LINE)


def plain(line: str) -> str:
    """A line without its end and without colours, its numbers written as everybody writes them."""
    line = line.rstrip("\n")
    return usual(_COLOUR.sub("", line) if "\x1b" in line else line)
