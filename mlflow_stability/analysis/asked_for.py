"""Tells whether somebody asked for a path or for a run.

In: what was typed or passed. Out: the path, or the run id. Promised: something that exists here is taken as a path,
even where its name looks like a run id, and that is said.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from mlflow_stability.errors import UnreadableLogError

_RUN_ID = re.compile(r"[0-9a-fA-F]{32}")


@dataclass(frozen=True, slots=True)
class AskedFor:
    """One thing to diagnose."""

    source: str
    """As it was given."""
    path: Path | None
    """Where to read; None: `source` is the id of a run."""
    remark: str = ""
    """What to tell the person who asked: it could have meant something else."""

    @property
    def is_path(self) -> bool:
        """Whether it is a file or a folder, rather than a run of a tracking store."""
        return self.path is not None


def asked_for(source: str | os.PathLike[str]) -> AskedFor:
    """What this is; ``UnreadableLogError`` for what is neither."""
    text = os.fspath(source)
    looks_like_a_run = isinstance(source, str) and _RUN_ID.fullmatch(text) is not None
    if os.path.lexists(text):
        remark = f"{text} is here as a file or folder, so it was not looked for as a run." if looks_like_a_run else ""
        return AskedFor(text, Path(text), remark)
    if looks_like_a_run:
        return AskedFor(text, None)
    raise UnreadableLogError(
        f"{text!r} is no file or folder here, and no run id either: those have 32 hexadecimal digits."
    )
