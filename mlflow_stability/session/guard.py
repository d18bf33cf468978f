"""Keeps our errors out of the training, and counts what we cost it.

Promised: an error of ours inside a hook is reported once, switches that part off, and the training goes on as if the
part had never been there. Under ``strict`` it is raised. What the user raises, Ctrl-C among it, always passes. In a
forked child nothing of ours runs.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

OnFailure = Callable[[str, Exception], None]


class PartGuard:
    """Wraps the bodies of hooks."""

    def __init__(self, strict: bool, on_failure: OnFailure) -> None:
        self.seconds = 0.0
        """Time spent in our code so far."""
        self.off: dict[str, str] = {}
        """The parts that are switched off, and why."""
        self.strict = strict
        self._on_failure = on_failure
        self._pid = os.getpid()
        self._inside = False

    def __call__(self, part: str, body: Callable[..., Any]) -> Callable[..., Any]:
        """The body, made harmless."""

        def guarded(*args: Any) -> Any:
            if part in self.off or os.getpid() != self._pid:
                return None
            outermost = not self._inside
            began = time.perf_counter() if outermost else 0.0
            self._inside = True
            try:
                return body(*args)
            except Exception as error:
                if self.strict:
                    raise
                self.off[part] = f"{type(error).__name__}: {error}"
                with contextlib.suppress(Exception):  # to tell of a failure may fail, and must not reach the training
                    self._on_failure(part, error)
                return None
            finally:
                if outermost:
                    self._inside = False
                    self.seconds += time.perf_counter() - began

        return guarded
