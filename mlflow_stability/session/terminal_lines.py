"""Write lines to a terminal without breaking progress bars, or through `logging`.

Guarantees: nothing is imported. tqdm's bars are removed and drawn again, on stdout and stderr; rich prints the text
above its own; a line that the script draws itself stays, and the text starts in the next row. The script's logging is
not changed: its levels for this logger hold, and each line names its sender once, whatever the format. Where no handler
is set up, lines of level INFO go to stderr as well.
"""

from __future__ import annotations

import io
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from typing import Any

from mlflow_stability.alerts.channels import new_row_prefix

LOCK_SECONDS = 0.5  # how long to wait for another thread that draws a bar, or a process that has died


@contextmanager
def without_bars(stream: Any) -> Iterator[None]:
    """Remove tqdm's bars from where this stream goes, and draw them again afterwards."""
    tqdm = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    bars = [bar for bar in getattr(tqdm, "_instances", ()) if hasattr(bar, "start_t")]
    shared = [bar for bar in bars if _share_a_screen(bar.fp, stream)]
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
        removed = [bar for bar in shared if _try_to_draw(bar.clear)]
        try:
            yield
        finally:
            for bar in removed:
                _try_to_draw(bar.refresh)


def write_whole(stream: Any, text: str) -> None:
    with without_bars(stream):
        stream.write(new_row(stream) + text)
        stream.flush()


def new_row(stream: Any) -> str:
    """Return what starts a row of its own."""
    if not isinstance(stream, io.TextIOWrapper):  # one that only stands for a terminal has its own idea of lines
        return ""
    try:
        return new_row_prefix(stream.fileno())
    except ValueError:  # closed
        return ""


def stand_in(stream: Any) -> Any:
    """Return what rich has put in the place of a stream, or the stream itself."""
    for proxy in (sys.stderr, sys.stdout):
        if type(proxy).__module__.startswith("rich.") and getattr(proxy, "rich_proxied_file", None) is stream:
            return proxy
    return stream


def _share_a_screen(stream: Any, other: Any) -> bool:
    """Whether both go to the terminal, or to the same file."""
    if stream == other:
        return True
    standard = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return all(candidate in standard or _is_terminal(candidate) for candidate in (stream, other))


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, OSError, ValueError):  # no file, or a closed one
        return False


def _try_to_draw(draw: Any) -> bool:
    """Let a bar draw itself; False if a bar of the script's own class fails."""
    try:
        draw(nolock=True)
    except Exception:  # an error of the script's own bar must not end its training
        return False
    return True


_shown_now: ProgressLine | None = None


def clear_progress() -> None:
    """Remove the progress line to write another line."""
    if _shown_now is not None:
        _shown_now.clear()


QUIET_SECONDS = 1.0
EVERY_SECONDS = 0.5


class ProgressLine:
    """A line that appears after a while, is overwritten, and removed at the end; only on a terminal."""

    def __init__(self, silent: bool = False) -> None:
        self._silent = silent
        self._began = time.monotonic()
        self._next = self._began + QUIET_SECONDS
        self._shown = 0

    def __call__(self, left: str) -> None:
        global _shown_now
        now = time.monotonic()
        if self._silent or now < self._next or not sys.stderr.isatty():
            return
        self._next = now + EVERY_SECONDS
        line = f"mlflow-stability: delivering to MLflow: {left} ({now - self._began:.0f} s)"[:79]
        sys.stderr.write(("" if self._shown else new_row(sys.stderr)) + "\r" + line.ljust(self._shown))
        sys.stderr.flush()
        self._shown = len(line)
        _shown_now = self

    def clear(self) -> None:
        global _shown_now
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
            self._shown = 0
            _shown_now = None


LOGGER = logging.getLogger("mlflow_stability")
SENDER = "mlflow-stability: "
_CLOSED = (OSError, ValueError, AttributeError)  # raised where the stream is closed or missing


def write_line(level: int, message: str, *args: object) -> None:
    """Write a line, unless this level is switched off for our logger."""
    if level < LOGGER.level or level <= LOGGER.manager.disable or LOGGER.disabled:
        return
    clear_progress()
    record = LOGGER.makeRecord(LOGGER.name, level, __file__, 0, message, args, None)
    if not LOGGER.hasHandlers():
        with suppress(*_CLOSED):
            write_whole(sys.stderr, f"{SENDER}{record.getMessage()}\n")
        return
    passed = LOGGER.filter(record)
    if not passed:
        return
    record = passed if isinstance(passed, logging.LogRecord) else record
    for handler in _handlers():
        if level >= handler.level:
            _handle(handler, record if _names_logger(handler, record) else _with_sender(record))


def _handlers() -> Iterator[logging.Handler]:
    """Yield the handlers that our logger reaches."""
    logger: logging.Logger | None = LOGGER
    while logger is not None:
        yield from tuple(logger.handlers)
        logger = logger.parent if logger.propagate else None


def _names_logger(handler: logging.Handler, record: logging.LogRecord) -> bool:
    """Whether the handler's format names our logger."""
    empty = copy(record)
    empty.msg, empty.args = "", ()
    try:
        return LOGGER.name in handler.format(empty)
    except Exception:  # a formatter that needs more than a message; its handler reports that
        return False


def _with_sender(record: logging.LogRecord) -> logging.LogRecord:
    sent = copy(record)
    sent.msg = f"{SENDER}{record.msg}"
    return sent


def _handle(handler: logging.Handler, record: logging.LogRecord) -> None:
    """Let a handler write a record in a row of its own.

    The handler is locked before the bars: handlers that print through tqdm do the same.
    """
    stream = getattr(handler, "stream", sys.stderr)
    handler.acquire()
    try:
        if type(handler) is logging.StreamHandler and stand_in(stream) is not stream:
            if handler.filter(record):
                _write(stand_in(stream), handler.format(record) + handler.terminator)
            return
        with without_bars(stream):
            if isinstance(handler, logging.StreamHandler):
                _write(stream, new_row(stream))
            handler.handle(record)
    finally:
        handler.release()


def _write(stream: Any, text: str) -> None:
    if text:
        with suppress(*_CLOSED):
            stream.write(text)
            stream.flush()
