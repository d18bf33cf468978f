"""One line on the terminal that appears after a while, is overwritten, and is removed when all is done."""

from __future__ import annotations

import sys
import time

from mlflow_stability.session.output.progress_bars import new_row

_shown_now: ProgressLine | None = None


def clear_progress() -> None:
    """Make room for another line, if one of these is on the terminal."""
    if _shown_now is not None:
        _shown_now.clear()


QUIET_SECONDS = 1.0
EVERY_SECONDS = 0.5


class ProgressLine:
    """What is still on its way, for whoever waits for it; nothing where stderr is no terminal."""

    def __init__(self, silent: bool = False) -> None:
        self._silent = silent
        self._began = time.monotonic()
        self._next = self._began + QUIET_SECONDS
        self._shown = 0

    def __call__(self, left: str) -> None:
        """Show this as what is left."""
        now = time.monotonic()
        if self._silent or now < self._next or not sys.stderr.isatty():
            return
        self._next = now + EVERY_SECONDS
        line = f"mlflow-stability: delivering to MLflow: {left} ({now - self._began:.0f} s)"[:79]
        sys.stderr.write(("" if self._shown else new_row(sys.stderr)) + "\r" + line.ljust(self._shown))
        sys.stderr.flush()
        self._shown = len(line)
        _set_shown(self)

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
            self._shown = 0
            _set_shown(None)


def _set_shown(line: ProgressLine | None) -> None:
    global _shown_now
    _shown_now = line
