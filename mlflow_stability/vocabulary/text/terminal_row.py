"""Move the cursor of a terminal to the beginning of a row."""

from __future__ import annotations

import os


def new_row_prefix(descriptor: int) -> str:
    """Return what to write before a line so that it begins in a row of its own; empty where this is no terminal.

    A row of spaces ends in the same row only if it began at the left edge: a progress bar or an unfinished line stays,
    and no empty row is left behind. zsh does the same before its prompt.
    """
    try:
        columns = os.get_terminal_size(descriptor).columns
    except OSError:  # a file or a pipe
        return ""
    return "" if os.environ.get("TERM", "dumb") == "dumb" else f"{' ' * columns}\r"
