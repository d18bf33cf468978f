"""A page set aside when a recording begins, so that its last words can be written on a full disk.

It is overwritten in place and never grows, so writing to it takes no new space. It says what the journal itself could
not be told: at which step recording stopped and why, and how the training ended.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson

from mlflow_stability.journal.record import to_json
from mlflow_stability.vocabulary.run import Closing

NAME = "last_words.json"
SIZE = 4096


class LastWords:
    """The page of one recording, open for writing."""

    def __init__(self, folder: Path) -> None:
        self._said: dict[str, Any] = {}
        self._fd = os.open(folder / NAME, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.say()
        os.fsync(self._fd)  # a file system that allocates late must do it now

    def say(self, **what: Any) -> None:
        """Add to the page; text is cut so that it always fits."""
        self._said.update(what)
        text = to_json(self._said)
        if len(text) < SIZE:
            os.pwrite(self._fd, text.ljust(SIZE - 1) + b"\n", 0)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)


def read_last_words(folder: Path) -> dict[str, Any]:
    """What stands on a recording's page; nothing, where there is none or it was torn."""
    try:
        said = orjson.loads((folder / NAME).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return said if isinstance(said, dict) else {}


def closing_in(last_words: Mapping[str, Any]) -> Closing | None:
    """The closing that found no room in the journal."""
    said = last_words.get("closing")
    return Closing(**{each.name: said[each.name] for each in fields(Closing) if each.name in said}) if said else None
