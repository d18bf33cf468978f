"""The two ways out: the result on stdout, everything else on stderr."""

from __future__ import annotations

from rich.console import Console

WIDEST = 100


def result_console() -> Console:
    """For what the user asked for; plain where it goes into a file or a pipe."""
    return _not_too_wide(Console(highlight=False))


def notes_console() -> Console:
    """For progress and remarks; progress is shown on a terminal only."""
    return _not_too_wide(Console(stderr=True, highlight=False))


def speaks_unicode(console: Console) -> bool:
    """Whether lines and dots of Unicode can be written there."""
    return console.encoding.lower().startswith("utf")


def megabytes(size: float) -> str:
    """`12.3 MB`, `18 kB`."""
    if size < 1e5:
        return f"{size / 1e3:.0f} kB"
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.1f} GB"


def _not_too_wide(console: Console) -> Console:
    if console.width > WIDEST:
        console.width = WIDEST
    return console
