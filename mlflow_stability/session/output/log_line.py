"""Writes one line for people: through `logging`, and on the terminal where the script has not set up logging.

Guarantees: nothing of the script's logging is changed; levels that it has chosen for this logger are kept. By default
Python shows warnings alone: what a training prints has lines of level INFO too.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

from mlflow_stability.session.output.progress_line import clear_progress

LOGGER = logging.getLogger("mlflow_stability")


def write_line(level: int, message: str, *args: object) -> None:
    """Write a line, unless a line of this level was switched off for this logger."""
    if level < LOGGER.level or level <= LOGGER.manager.disable or LOGGER.disabled:
        return
    clear_progress()
    record = LOGGER.makeRecord(LOGGER.name, level, __file__, 0, message, args, None)
    if LOGGER.hasHandlers():
        LOGGER.handle(record)
        return
    with suppress(OSError, ValueError, AttributeError):  # a stderr that is closed, or that is not there
        sys.stderr.write(f"mlflow-stability: {record.getMessage()}\n")
        sys.stderr.flush()
