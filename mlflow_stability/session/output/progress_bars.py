"""Writes text to a terminal without breaking the progress bars that the script shows there.

In: a stream, and what to write to it. Guarantees: nothing is imported; tqdm's bars are removed and drawn again, with
all that are below each other and on stdout as well as stderr; rich's are given the text, and print it above themselves;
a line that the script draws itself stays as it is, and the text begins in the next row.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from mlflow_stability.vocabulary.text import to_new_row

LOCK_SECONDS = 0.5
"""How long to wait for another thread that draws a bar; longer would be a wait for a process that has died."""


@contextmanager
def bars_removed(stream: Any) -> Iterator[None]:
    """Remove tqdm's bars from where this stream goes, and draw them again afterwards."""
    tqdm = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    bars = [each for each in getattr(tqdm, "_instances", ()) if hasattr(each, "start_t")]
    shared = [each for each in bars if _share_a_screen(each.fp, stream)]
    if not shared:
        yield
        return
    with ExitStack() as held:
        lock = tqdm.get_lock()  # type: ignore[union-attr]
        for part in getattr(lock, "locks", (lock,)):
            if not part.acquire(timeout=LOCK_SECONDS):
                yield
                return
            held.callback(part.release)
        removed = [each for each in shared if _drawn(each.clear)]
        try:
            yield
        finally:
            for each in removed:
                _drawn(each.refresh)


def write_whole(stream: Any, text: str) -> None:
    """Write complete lines."""
    with bars_removed(stream):
        stream.write(new_row(stream) + text)
        stream.flush()


def new_row(stream: Any) -> str:
    """What to write first, for a text that is to begin in a row of its own."""
    if not isinstance(stream, io.TextIOWrapper):  # one that only stands for a terminal has its own idea of lines
        return ""
    try:
        return to_new_row(stream.fileno())
    except ValueError:  # closed
        return ""


def stand_in(stream: Any) -> Any:
    """What rich has put in the place of a stream while it shows something there; else the stream itself."""
    for each in (sys.stderr, sys.stdout):
        if type(each).__module__.startswith("rich.") and getattr(each, "rich_proxied_file", None) is stream:
            return each
    return stream


def _share_a_screen(one: Any, other: Any) -> bool:
    """Whether both go to the terminal, or to the same file; stdout and stderr mostly do."""
    if one == other:
        return True
    standard = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return all(each in standard or _is_terminal(each) for each in (one, other))


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, OSError, ValueError):  # no file, or a closed one
        return False


def _drawn(draw: Any) -> bool:
    """Have a bar draw itself; False if the script's own kind of bar fails at it, and is left as it is."""
    try:
        draw(nolock=True)
    except Exception:  # whatever a class of the script's raises is no reason to end its training
        return False
    return True
