"""Moves the cursor of a terminal to the beginning of a row, whatever is in the row that it stands in."""

from __future__ import annotations

import os


def to_new_row(descriptor: int) -> str:
    """What to write before a line so that it begins in a row of its own; empty where this is no terminal.

    As many spaces as a row is wide end in the same row only if they began at its left edge: a progress bar or a line
    that is not finished stays as it is, and an empty row is not left behind. zsh does the same before its prompt.
    """
    try:
        columns = os.get_terminal_size(descriptor).columns
    except OSError:  # a file or a pipe
        return ""
    return "" if os.environ.get("TERM", "dumb") == "dumb" else f"{' ' * columns}\r"
