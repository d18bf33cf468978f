"""Opens a text file of any usual encoding, packed or not, as lines.

In: a path. Out: its lines, one at a time. Guarantees: UTF-8, UTF-16, GB18030, else Latin-1; lines end with LF,
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
from mlflow_stability.importers.decode.harmless import reason_of, shown_path
from mlflow_stability.importers.decode.number_formats import usual
from mlflow_stability.importers.text.overwritten import last_state

HEAD = 65_536
"""How many bytes are looked at to tell what a file is."""
LONGEST_LINE = 20_000
BLOCK = 1 << 18
"""How many characters are read at once where lines are read in blocks."""
_GZIP = b"\x1f\x8b"
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")
_PAIRS = re.compile(rb"(?:[\xa1-\xf7][\xa1-\xfe]){2,}|[\xa1-\xa3][\xa1-\xfe]")
"""Two Chinese characters or more, or a full-width mark; a single pair may be a German's ``öß`` in Latin-1."""
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}
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
        raise UnreadableLogError(f"No such file: {shown_path(path)}.") from None
    except PermissionError:
        raise UnreadableLogError(f"{shown_path(path)} cannot be read: permission denied.") from None
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
        return _utf_16_without_mark(head)
    if _decodes(head, "utf-8"):
        return "utf-8"
    odd = sum(byte < 8 or 13 < byte < 27 or 27 < byte < 32 for byte in head)
    if odd * 100 > len(head):
        return None
    return "gb18030" if _is_chinese(head) else "latin-1"


def _decodes(head: bytes, encoding: str) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _is_chinese(head: bytes) -> bool:
    """Whether bytes above ASCII come in the pairs that Chinese texts are made of, and not alone as accents do."""
    high = sum(byte > 0x7F for byte in head)
    paired = sum(map(len, _PAIRS.findall(head)))
    return paired >= 0.7 * high and _decodes(head, "gb18030")


def _utf_16_without_mark(head: bytes) -> str | None:
    """UTF-16 where nearly every other byte is zero, as it is in English; else it is no text."""
    for order, zeros, others in (("utf-16-le", head[1::2], head[::2]), ("utf-16-be", head[::2], head[1::2])):
        if len(zeros) > 1 and zeros.count(0) > 0.9 * len(zeros) and not others.count(0):
            text = head[: len(head) // 2 * 2].decode(order, "replace")
            if sum(each.isprintable() or each.isspace() for each in text) > 0.99 * len(text):
                return order
    return None


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


def blocks_of(text: TextIO, size: int = BLOCK) -> Iterator[str]:
    """The same in blocks of whole lines, each line with its end; every line is what `lines_of` gives."""
    rest = ""
    while piece := text.read(size):
        rest += piece
        end = rest.rfind("\n") + 1
        if end:
            yield _plain_block(rest[:end])
            rest = rest[end:]
        else:
            rest = rest[:LONGEST_LINE]
    if rest:
        yield _plain_block(rest + "\n")


def _plain_block(block: str) -> str:
    lines = block.split("\n")
    too_long = max(map(len, lines)) >= LONGEST_LINE
    odd = not block.isascii() or any(each in block for each in ("\x1b", "\b", "1.#", "tensor("))
    if not (too_long or odd or "nan(" in block.lower()):
        return block
    return "\n".join([plain(line[:LONGEST_LINE]) for line in lines])


def plain(line: str) -> str:
    """A line without its end, colours and what it wrote over, its letters and numbers as everybody writes them."""
    line = line.rstrip("\n")
    if "\x1b" in line:
        line = _COLOUR.sub("", line)
    if "\b" in line:
        line = last_state(line)
    if not line.isascii():
        line = line.translate(_FULL_WIDTH)
    return usual(line)
