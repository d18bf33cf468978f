"""The end of training waits until everything is delivered: the only place where training waits.

It has to: the end of a container's first process, or of a job, kills everything beside it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from mlflow_stability.session.courier_link import CourierLink

QUIET_SECONDS = 1.0


class _ProgressLine:
    """One line on the terminal that comes only after a while and goes when all is done."""

    def __init__(self) -> None:
        self._shown = 0
        self._quiet_until = time.monotonic() + QUIET_SECONDS

    def __call__(self, status: dict[str, Any]) -> None:
        if time.monotonic() < self._quiet_until or not sys.stderr.isatty():
            return
        waiting = status.get("waiting_records", 0)
        line = f"mlflow-stability: delivering the record to MLflow, {waiting / 1e6:.1f} MB to go ..."
        sys.stderr.write("\r" + line.ljust(self._shown))
        sys.stderr.flush()
        self._shown = len(line)

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()


def wait_for_delivery(awaited: Sequence[tuple[CourierLink, float]]) -> bool:
    """Wait for every courier, for each so many seconds and for all at once; say so when that was not enough."""
    began = time.monotonic()
    line = _ProgressLine()
    late = [each for each in awaited if not each[0].wait(max(0.0, began + each[1] - time.monotonic()), line)]
    line.clear()
    for link, seconds in late:
        if not link.was_started:
            continue  # which was said when it happened
        trouble = link.trouble()
        link.warn(
            "After %.0f s not everything has reached the tracking server%s. What is left is safe in %s, and the "
            "courier goes on delivering it; `mlflow-stability sync` does so too.",
            seconds,
            f" ({trouble})" if trouble else "",
            link.folder.parent,
        )
        link.let_go()
    return not late
