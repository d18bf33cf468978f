"""Writes one line for people: through `logging`, and on the terminal where the script has not set up logging.

Guarantees: nothing of the script's logging is changed; levels that it has chosen for this logger are kept; each line
names its sender once, whatever the script's format is; progress bars stay whole. By default Python shows warnings
alone: what a training prints has lines of level INFO too.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from typing import Any

from mlflow_stability.session.output.progress_bars import bars_removed, new_row, stand_in, write_whole
from mlflow_stability.session.output.progress_line import clear_progress

LOGGER = logging.getLogger("mlflow_stability")
SENDER = "mlflow-stability: "
_CLOSED = (OSError, ValueError, AttributeError)
"""What writing raises where the stream is closed or missing."""


def write_line(level: int, message: str, *args: object) -> None:
    """Write a line, unless a line of this level was switched off for this logger."""
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
    """Those that a record of our logger reaches."""
    logger: logging.Logger | None = LOGGER
    while logger is not None:
        yield from tuple(logger.handlers)
        logger = logger.parent if logger.propagate else None


def _names_logger(handler: logging.Handler, record: logging.LogRecord) -> bool:
    """Whether what this handler writes says by itself who has sent it."""
    empty = copy(record)
    empty.msg, empty.args = "", ()
    try:
        return LOGGER.name in handler.format(empty)
    except Exception:  # a formatter of the script's that needs more than a message; its handler reports that itself
        return False


def _with_sender(record: logging.LogRecord) -> logging.LogRecord:
    sent = copy(record)
    sent.msg = f"{SENDER}{record.msg}"
    return sent


def _handle(handler: logging.Handler, record: logging.LogRecord) -> None:
    """Have a handler write a record in a row of its own.

    The handler is locked before the bars are: handlers that print through tqdm do so as well.
    """
    stream = getattr(handler, "stream", sys.stderr)
    handler.acquire()
    try:
        if type(handler) is logging.StreamHandler and stand_in(stream) is not stream:
            if handler.filter(record):
                _write(stand_in(stream), handler.format(record) + handler.terminator)
            return
        with bars_removed(stream):
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
