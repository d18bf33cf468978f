"""Golden files on disk: one JSON document for each group of cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "files"


def file_of(group: str, folder: Path = FOLDER) -> Path:
    """Where the shapes of a group are."""
    return folder / f"{group}.json"


def read(group: str, folder: Path = FOLDER) -> dict[str, Any]:
    """The shapes of a group as they were; empty for a group without a file."""
    file = file_of(group, folder)
    by_name: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return by_name


def text_of(shapes: dict[str, Any]) -> str:
    """The document: sorted, one value a line, so that a difference is a line of a diff."""
    return json.dumps(shapes, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def write(group: str, shapes: dict[str, Any], folder: Path = FOLDER) -> None:
    """Replace the shapes of a group."""
    folder.mkdir(exist_ok=True)
    file_of(group, folder).write_text(text_of(shapes), encoding="utf-8")
