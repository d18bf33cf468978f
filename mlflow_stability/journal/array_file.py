"""Keeps a few arrays in one file of a recording.

In: arrays by name, and where they go. Out: a file, mode 0600 in a folder of 0700; and what was made of it.
Guarantees: a file is there whole or not at all; a full disk leaves no litter and raises nothing; what is read is what
was written, and nothing in a file is ever executed.

A file is a line of JSON with the name, type and shape of each array, and their bytes behind it; the CRC-32 of it all
comes first, as in a line of the journal. An `.npz` takes four times as long to write, in the thread that trains.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.errors import JournalError

SUFFIX = ".arrays"
_T = TypeVar("_T")
_logger = logging.getLogger(__name__)


def write_arrays(file: Path, arrays: Mapping[str, NDArray[Any]]) -> Path | None:
    """Keep arrays; None where there was no room for them."""
    head = json.dumps([(name, each.dtype.str, each.shape) for name, each in arrays.items()]).encode()
    content = b"\n".join((head, b"".join([each.tobytes() for each in arrays.values()])))
    draft = file.parent / f".{file.name}.{os.getpid()}"
    try:
        with _new_file(draft) as page:
            page.write(b"%08x " % crc32(content) + content)
        draft.replace(file)
    except OSError as error:
        _logger.debug("Could not write %s: %s", file, error)
        draft.unlink(missing_ok=True)
        return None
    return file


def _new_file(draft: Path) -> BinaryIO:
    """Open a file that only its owner reads; its folder is made with the first one."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(draft, flags, 0o600), "wb")
    except FileNotFoundError:
        draft.parent.mkdir(mode=0o700, exist_ok=True)
        return os.fdopen(os.open(draft, flags, 0o600), "wb")


def read_arrays(file: Path, made: Callable[[Mapping[str, NDArray[Any]]], _T], what: str) -> _T:
    """What is made of the arrays in a file; JournalError where that is damaged or gone."""
    try:
        return made(_arrays_of(file.read_bytes()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise JournalError(f"Cannot read the {what} in {file}: {error}") from error


def _arrays_of(said: bytes) -> dict[str, NDArray[Any]]:
    content = said[9:]
    if said[:9] != b"%08x " % crc32(content):
        raise ValueError("it was cut off or changed")
    head, _, values = content.partition(b"\n")
    found: dict[str, NDArray[Any]] = {}
    at = 0
    for name, kind, shape in json.loads(head):
        count = math.prod(shape)
        array = np.frombuffer(values, np.dtype(kind), count, at) if count else np.zeros(0, np.dtype(kind))
        found[name] = array.reshape(shape).copy()
        at += array.nbytes
    return found
