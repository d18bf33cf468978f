"""The end of training waits until everything is delivered: the only place where training waits.

It has to: the end of a container's first process, or of a job, kills everything beside it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from mlflow_stability.session.courier_link import CourierLink, Say

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


def wait_for_delivery(links: Sequence[CourierLink], seconds: float, warn: Say) -> bool:
    """Wait for every courier, `seconds` in all; say so when that was not enough."""
    until = time.monotonic() + seconds
    line = _ProgressLine()
    late = [link for link in links if not link.wait(max(0.0, until - time.monotonic()), line)]
    line.clear()
    for link in late:
        if not link.was_started:
            continue  # which was said when it happened
        trouble = link.trouble()
        warn(
            "After %.0f s not everything has reached the tracking server%s. What is left is safe in %s, and the "
            "courier goes on delivering it; `mlflow-stability sync` does so too.",
            seconds,
            f" ({trouble})" if trouble else "",
            link.folder.parent,
        )
        link.let_go()
    return not late
