"""Read a text file of any usual encoding, packed or not, as clean lines.

Guarantees: UTF-8, UTF-16, GB18030, else Latin-1; lines end with LF, CRLF or the lone CR of progress bars and have at
most 20,000 characters; colours are removed, numbers are written as `float` takes them; no file is read twice, and none
is held whole.
"""

from __future__ import annotations

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from mlflow_stability.errors import UnreadableLogError
from mlflow_stability.vocabulary.text.phrases import visible

HEAD_BYTES = 65_536  # bytes from which the format of a file is recognised
MAX_LINE = 20_000
SAMPLE_LINES = 500  # lines from which the decimal separator of a text is recognised
MIN_COMMA_NUMBERS = 3  # numbers whose comma cannot separate thousands, for a text to have decimal commas
_MAX_SHOWN = 300
_GZIP = b"\x1f\x8b"
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
# Two Chinese characters or more, or a full-width mark; a single pair may be a German's `öß` in Latin-1.
_CHINESE = re.compile(rb"(?:[\xa1-\xf7][\xa1-\xfe]){2,}|[\xa1-\xa3][\xa1-\xfe]")
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")
_CURSOR_UP = re.compile(r"\x1b\[\d*A")
_OVERWRITE = re.compile(r"[\r\b]+")
_EMPTY_BAR = re.compile(r"(?:^|\s)0%\|.*\| 0(?:\.0+)?/\d+ \[00:00<\?")
_KERAS_BAR = re.compile(r"(?:^|\s)(\d+)/(\d+) +(?:\[[=>.-]+\]|━+) ")

_TENSOR = re.compile(r"\btensor\(([^,()\[\]]+)[^()]*\)")
_C_NAN = re.compile(r"(?<![\w.])[-+]?nan\((?:[qs]?nan|ind|0x[0-9a-f]+|\d*)\)", re.IGNORECASE)
_MSVC_NON_FINITE = re.compile(r"(?<![\w.])([-+]?)1\.#(QNAN|SNAN|IND|INF|R|J)\d*\b")
_CHINESE_ORDINAL = re.compile(r"第\s*(\d+)\s*(?:/\s*\d+\s*)?个?(轮|步|次迭代|epoch\b|iter\b|step\b)")
_CHINESE_UNITS = {"轮": "epoch", "步": "step", "次迭代": "iteration", "epoch": "epoch", "iter": "iter", "step": "step"}

_DARKNET = re.compile(r"^\s*(\d+): (\S+), \S+ avg(?: loss)?, (\S+) rate, ")

_YOLO = re.compile(r"\s*(\d+)/\d+\s+[\d.]+G((?:\s+(?:[\d.]+(?:e[-+]?\d+)?|nan|inf)){13})\s*", re.IGNORECASE)
_YOLO_COLUMNS = (
    *("train/box_loss", "train/obj_loss", "train/cls_loss", "", "", ""),
    *("metrics/precision", "metrics/recall", "metrics/mAP_0.5", "metrics/mAP_0.5:0.95"),
    *("val/box_loss", "val/obj_loss", "val/cls_loss"),
)
"""Columns of the `results.txt` of YOLOv5 and YOLOv7 behind epoch and memory; nameless are sum, labels, image size."""
_CAFFE_TERM = re.compile(r"(?<=Train net output #)\d+: \S+ = \S+ \(\* \S+ = \S+ loss\)")

_BEFORE = r"(?<![\w.,])(?<!\d:)"
_COMMA = re.compile(_BEFORE + r"([-+]?\d+),(\d+(?:[eE][-+]?\d+)?)(?![\w.]|,\d)")
_NO_THOUSANDS = re.compile(_BEFORE + r"[-+]?(?:\d+,(?!\d{3}\b)\d+|0\d*,\d+|\d{4,},\d+)(?:[eE][-+]?\d+)?(?![\w.]|,\d)")
_POINT = re.compile(r"(?<![\w.:/-])[-+]?\d+\.\d+(?:[eE][-+]?\d+)?(?![\w.])")


def printable(text: str) -> str:
    """Return a text from outside in one line without control characters, cut where it is long."""
    return visible(text, _MAX_SHOWN)


def printable_path(path: Path) -> str:
    """Return a path as error messages name it."""
    return printable(str(path))


def error_reason(error: BaseException) -> str:
    """Return why something could not be read, as the system words it, without a full stop."""
    return printable(getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """Open a file, unpacked where it is packed; raise `UnreadableLogError` for what the system refuses."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            with gzip.GzipFile(fileobj=raw) if packed else raw as file:
                yield cast("BinaryIO", file)
    except FileNotFoundError:
        raise UnreadableLogError(f"No such file: {printable_path(path)}.") from None
    except PermissionError:
        raise UnreadableLogError(f"{printable_path(path)} cannot be read: permission denied.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableLogError(f"{printable_path(path)} could not be read: {error_reason(error)}.") from error


def head_of(path: Path) -> bytes:
    """Return the first bytes of a file."""
    with open_bytes(path) as file:
        try:
            return file.read(HEAD_BYTES)
        except (EOFError, zlib.error):
            return b""


def encoding_of(head: bytes) -> str | None:
    """Return the encoding of a text that begins like this; None for a binary file."""
    for mark, encoding in _BOMS:
        if head.startswith(mark):
            return encoding
    if head.startswith(b"\0\0"):  # a log that was emptied while a process wrote to it
        head = head.lstrip(b"\0")
    if b"\0" in head:
        return _utf_16_without_mark(head)
    if _decodes(head, "utf-8"):
        return "utf-8"
    control = sum(byte < 8 or 13 < byte < 27 or 27 < byte < 32 for byte in head)
    if control * 100 > len(head):
        return None
    # Chinese comes in pairs of bytes above ASCII, accents of Latin-1 come alone.
    high = sum(byte > 0x7F for byte in head)
    paired = sum(map(len, _CHINESE.findall(head)))
    return "gb18030" if paired >= 0.7 * high and _decodes(head, "gb18030") else "latin-1"


def _decodes(head: bytes, encoding: str) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _utf_16_without_mark(head: bytes) -> str | None:
    """Recognise UTF-16 where almost every other byte is zero, as in English."""
    for order, zeros, others in (("utf-16-le", head[1::2], head[::2]), ("utf-16-be", head[::2], head[1::2])):
        if len(zeros) > 1 and zeros.count(0) > 0.9 * len(zeros) and not others.count(0):
            text = head[: len(head) // 2 * 2].decode(order, "replace")
            if sum(letter.isprintable() or letter.isspace() for letter in text) > 0.99 * len(text):
                return order
    return None


@contextmanager
def open_text(path: Path, encoding: str) -> Iterator[TextIO]:
    """Open a file as text."""
    with open_bytes(path) as file:
        yield io.TextIOWrapper(file, encoding=encoding, errors="replace", newline=None)


def lines_of(text: TextIO) -> Iterator[str]:
    """Yield clean lines, without their ends."""
    while line := text.readline(MAX_LINE):
        yield clean_line(line)
        while not line.endswith("\n") and line:  # skip the rest of a line that is too long
            line = text.readline(MAX_LINE)


def clean_line(line: str) -> str:
    """Return a line without its end, colours and overwritten text, its numbers as `float` takes them.

    NaN of C libraries (`-nan(ind)`, `1.#QNAN`) is `nan`, `tensor(0.5, device='cuda:0')` is 0.5, and the Chinese for
    "the third epoch" is `epoch 3`. Darknet's `12: 3.45, 3.50 avg loss, 0.001 rate` gets names, and so does the
    evaluation of TensorFlow's estimators.
    """
    line = line.rstrip("\n").replace("\0", "")
    if "\x1b" in line:
        line = _COLOUR.sub("", _CURSOR_UP.sub("\b", line))  # a progress bar, and what is on the line above it
    if "\b" in line:
        line = last_state(line)
    if not line.isascii():
        line = line.translate(_FULL_WIDTH)
    if "(" in line:
        if "tensor(" in line:
            line = _TENSOR.sub(r"\1", line)
        line = _C_NAN.sub("nan", line)
    if "第" in line:
        line = _CHINESE_ORDINAL.sub(lambda match: f"{_CHINESE_UNITS[match[2]]} {match[1]} ", line)
    if " avg" in line:
        line = _DARKNET.sub(r"iteration \1: loss \2, lr \3, ", line)
    if "G " in line and (row := _YOLO.fullmatch(line)) is not None:
        cells = zip(_YOLO_COLUMNS, row[2].split(), strict=True)
        line = f"epoch {row[1]}: " + ", ".join(f"{name}={cell}" for name, cell in cells if name)
    if " net output #" in line:  # of Caffe, a term of the loss that `Iteration 500, loss = 8.9` has in full
        line = _CAFFE_TERM.sub("", line)
    if "[Losses: " in line:  # of YOLO in PyTorch: `[Losses: x 0.27, conf 4.3, total 5.1, recall: 0.1]`
        line = line.replace(" total ", " total loss ")
    line = line.replace("Saving dict for global step ", "eval at global step ")
    return _MSVC_NON_FINITE.sub(_inf_or_nan, line) if "1.#" in line else line


def _inf_or_nan(match: re.Match[str]) -> str:
    # With two decimals `1.#INF` is printed as `1.#J`, and so is `-1.#IND`.
    sign, kind = match.groups()
    return f"{sign}inf" if kind == "INF" or (kind == "J" and sign != "-") else "nan"


def with_points(lines: Iterable[str]) -> Iterator[str]:
    """Replace decimal commas by points; the clock `12:03:04,512` and the list `1,2,3` stay what they are."""
    rest = iter(lines)
    sample = list(islice(rest, SAMPLE_LINES))
    commas = sum(len(_NO_THOUSANDS.findall(line)) for line in sample if "," in line)
    if commas < MIN_COMMA_NUMBERS or any(map(_POINT.search, sample)):
        return chain(sample, rest)
    return (_COMMA.sub(r"\1.\2", line) if "," in line else line for line in chain(sample, rest))


def last_state(line: str) -> str:
    """Return a line as it was on the screen in the end: what was written after the last CR or backspace."""
    return next((state for state in reversed(_OVERWRITE.split(line)) if state.strip()), "")


def last_states(text: str) -> Iterator[str]:
    """Yield each line of a printed text as it was in the end."""
    for line in text.replace("\r\n", "\n").split("\n"):
        yield last_state(line)


def all_states(text: str) -> Iterator[str]:
    """Yield each line of a printed text as often as it was written."""
    for line in text.replace("\r\n", "\n").split("\n"):
        yield from _OVERWRITE.split(line)


def is_unfinished_bar(line: str) -> bool:
    """Whether this is Keras's progress bar within an epoch, or one of tqdm that has not begun.

    Values of the former are means over a part of the epoch, those of the latter are left from the bar before.
    """
    if "[00:00<?" in line and _EMPTY_BAR.search(line):
        return True
    if "ETA" not in line and "/step" not in line:
        return False
    bar = _KERAS_BAR.search(line)
    return bar is not None and ("ETA" in line or bar[1] != bar[2])


def finished_bar(line: str) -> str:
    """Return the number of batches of Keras's progress bar at its end; empty for any other line."""
    bar = _KERAS_BAR.search(line)
    return bar[2] if bar is not None and bar[1] == bar[2] else ""
