"""Damage bytes and JSON at random, so that the same random numbers give the same result."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from random import Random
from typing import Any

NUMBERS = (
    *(b"nan", b"NaN", b"", b"null", b"inf", b"-Infinity", b"1e999", b"-1e308", b"1e-400", b"0", b"-0", b"-1", b"1_0"),
    *(b"9" * 400, b"18446744073709551616", b"9223372036854775807", b"0x10", b"1,000", "٣".encode(), b"1.", b"1e"),
)
PIECES = (
    *(
        b"\0",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"\t",
        b",",
        b";",
        b'"',
        b"'",
        b"\\",
        b"|",
        b"{",
        b"}",
        b"[",
        b"[" * 300,
        b"{" * 60,
    ),
    *(b"\xff\xfe", b"\xef\xbb\xbf", b"\x80\x04", b"\xff" * 8, b"\x1b[31m", b"\x08" * 40, b"\xe2\x80\xa8", b"\xc2\x85"),
    *(b"loss: ", b"step ", b"epoch", b"nan", b"<table>", b"<script>alert(1)</script>", b"]]>", b"&#0;", b"../../x"),
    *(b"tensor(", b"array([", b"1e999", b"-", b"=", b"9" * 60, b" " * 200, b"a" * 3000, b"Traceback (most recent call"),
    *(
        b"cposix\nsystem\n(S'touch harm'\ntR.",
        b'c__builtin__\neval\n(S\'open("harm","w")\'\ntR.',
        b"\x8c\x02os\x8c\x06system\x93",
    ),
)
ENCODINGS = ("utf-8-sig", "utf-16", "utf-16-be", "utf-32", "latin-1", "gb18030", "cp1252", "utf-7", "shift-jis")
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def damaged(content: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    """Return the content with one to five kinds of damage; `others` are what it may be spliced with."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        content = rng.choice(_DAMAGES)(content, others, rng)
    return content


def _range(content: bytes, rng: Random, longest: int = 2000) -> tuple[int, int]:
    start = rng.randrange(len(content) + 1)
    return start, min(len(content), start + rng.randrange(1, longest))


def _cut(content: bytes, _others: Sequence[bytes], rng: Random) -> bytes:
    where = rng.randrange(len(content) + 1)
    return content[:where] if rng.random() < 0.7 else content[where:]


def _drop(content: bytes, _others: Sequence[bytes], rng: Random) -> bytes:
    start, end = _range(content, rng)
    return content[:start] + content[end:]


def _flip(content: bytes, _others: Sequence[bytes], rng: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.randrange(1, 9) if changed else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _insert(content: bytes, _others: Sequence[bytes], rng: Random) -> bytes:
    where, piece = rng.randrange(len(content) + 1), rng.choice(PIECES)
    return content[:where] + piece + content[where + (len(piece) if rng.random() < 0.5 else 0) :]


def _repeat(content: bytes, _others: Sequence[bytes], rng: Random) -> bytes:
    start, end = _range(content, rng)
    where = rng.randrange(len(content) + 1)
    return content[:where] + content[start:end] * rng.choice((1, 1, 2, 5)) + content[where:]


def _splice(content: bytes, others: Sequence[bytes], rng: Random) -> bytes:
    other = rng.choice(others)
    start, end = _range(other, rng, 8000)
    where = rng.randrange(len(content) + 1)
    return content[:where] + other[start:end] + (content[where:] if rng.random() < 0.5 else b"")


def _change_lines(content: bytes, _others: Sequence[bytes], rng: Random) -> bytes:
    lines = content.split(b"\n")
    for _ in range(rng.randrange(1, 6)):
        where, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        match rng.randrange(4):
            case 0:
                lines[where:where] = [lines[other]] * rng.choice((1, 3, 40))
            case 1:
                lines[where], lines[other] = lines[other], lines[where]
            case 2 if len(lines) > 1:
                del lines[where]
            case _:
                lines[where] = lines[where][: rng.randrange(len(lines[where]) + 1)]
    return rng.choice((b"\n", b"\n", b"\n", b"\r\n", b"\r", b"\x0b")).join(lines)


def _replace_numbers(content: bytes, _others: Sequence[bytes], rng: Random) -> bytes:
    places = list(_NUMBER.finditer(content))
    if not places:
        return content
    if rng.random() < 0.3:  # one number, wherever it is
        return content.replace(rng.choice(places)[0], rng.choice(NUMBERS))
    for place in sorted(rng.sample(places, min(len(places), rng.choice((1, 2, 10, 100)))), key=lambda m: -m.start()):
        content = content[: place.start()] + rng.choice(NUMBERS) + content[place.end() :]
    return content


def _mix_encodings(content: bytes, _others: Sequence[bytes], rng: Random) -> bytes:
    where = rng.choice((0, rng.randrange(len(content) + 1)))
    return content[:where] + content[where:].decode("utf-8", "replace").encode(rng.choice(ENCODINGS), "replace")


_DAMAGES = (
    *(_cut, _drop, _flip, _flip, _insert, _insert, _repeat, _splice, _change_lines, _change_lines),
    *(_replace_numbers, _replace_numbers, _mix_encodings),
)

TEXTS = (
    *("", "x", "nan", "inf", "-inf", "NaN", "1e999", "../../x", "/etc/passwd", "\0", "\x1b[31m", "\ud800", "\u2028"),
    *("<script>alert(1)</script>", "' onload='x", "{{ 7 * 7 }}", "=1+1", "a" * 5000, "loss", "loss_spike", "ERROR"),
)
VALUES = (None, True, False, 0, -1, 2**31, 2**63, 2**70, -(2**63), 1e308, 0.5, [], {}, [[]], [{}], {"": None}, *TEXTS)


def damaged_json(value: Any, rng: Random) -> Any:
    """Return the value with one to four of its parts replaced, removed, repeated or renamed."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = _with_other_part(value, rng)
    return value


def _with_other_part(value: Any, rng: Random) -> Any:
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return _other_value(value, rng)
    key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
    match rng.randrange(8):
        case 0:
            del value[key]
        case 1 if isinstance(value, dict):
            name = rng.choice(("", "x", "schema", "step", rng.choice(list(value))))
            value[name] = value.pop(key)
        case 1:
            value.insert(key, value[rng.randrange(len(value))])
        case _:
            value[key] = _with_other_part(value[key], rng)
    return value


def _other_value(value: Any, rng: Random) -> Any:
    if rng.random() < 0.05:
        for _ in range(rng.choice((3, 100, 300))):
            value = [value]
        return value
    if isinstance(value, int | float) and rng.random() < 0.3:
        return rng.choice((-value, value * 1e6, str(value), [value], float(value), value + 1))
    return copy.deepcopy(rng.choice(VALUES))
