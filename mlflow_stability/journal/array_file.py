"""Keeps a few arrays in one file of a recording.

In: arrays by name, and where they go. Out: an `.npz`, mode 0600 in a folder of 0700; and what was made of it.
Guarantees: a file is there whole or not at all; a full disk leaves no litter and raises nothing; what is read is what
was written, and nothing in a file is ever executed.
"""

from __future__ import annotations

import logging
import os
import zipfile
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mlflow_stability.errors import JournalError

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)


def write_arrays(file: Path, arrays: Mapping[str, NDArray[Any]]) -> Path | None:
    """Keep arrays; None where there was no room for them."""
    draft = file.parent / f".{file.name}.{os.getpid()}"
    try:
        file.parent.mkdir(mode=0o700, exist_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as page:
            np.savez(page, **arrays)  # type: ignore[arg-type]
        draft.replace(file)
    except OSError as error:
        _logger.debug("Could not write %s: %s", file, error)
        draft.unlink(missing_ok=True)
        return None
    return file


def read_arrays(file: Path, made: Callable[[Mapping[str, NDArray[Any]]], _T], what: str) -> _T:
    """What is made of the arrays in a file; JournalError where that is damaged or gone."""
    try:
        with np.load(BytesIO(file.read_bytes()), allow_pickle=False) as said:
            return made({name: said[name] for name in said.files})
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise JournalError(f"Cannot read the {what} in {file}: {error}") from error
