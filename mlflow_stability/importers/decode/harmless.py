"""Paths and lines from outside, made fit to be shown.

In: any text. Out: the same in one line, without control characters, so that no log can steer a terminal.
"""

from __future__ import annotations

from pathlib import Path

from mlflow_stability.vocabulary.text import visible

_LONGEST = 300


def shown_path(path: Path) -> str:
    """A path as an error may name it."""
    return shown_text(str(path))


def reason_of(error: BaseException) -> str:
    """Why something could not be read, as the system says it, without a full stop."""
    return shown_text(getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")


def shown_text(text: str) -> str:
    """A text in one line of printable characters, cut where it is long."""
    return visible(text, _LONGEST)
