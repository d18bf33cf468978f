"""Keeps our errors out of the training, and counts what we cost it.

Promised: an error of ours inside a hook is reported once, switches that part off, and the training goes on as if the
part had never been there. Under ``strict`` it is raised. What the user raises, Ctrl-C among it, always passes. In a
forked child nothing of ours runs.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

from mlflow_stability.errors import TrainingDiverged

OnFailure = Callable[[str, Exception], None]


class _Forks:
    """How many forks lie between the first process and this one: cheaper to ask at each hook than the pid."""

    count = 0

    def one_more(self) -> None:
        self.count += 1


_forks = _Forks()
os.register_at_fork(after_in_child=_forks.one_more)


class PartGuard:
    """Wraps the bodies of hooks."""

    def __init__(self, strict: bool, on_failure: OnFailure) -> None:
        self.off: dict[str, str] = {}
        """The parts that are switched off, and why."""
        self.strict = strict
        self._on_failure = on_failure
        self._forks = _forks.count
        self._inside = False
        self._seconds = self._began = 0.0

    @property
    def seconds(self) -> float:
        """Time spent in our code so far, up to this moment also where it is our code that asks."""
        return self._seconds + (time.perf_counter() - self._began if self._inside else 0.0)

    def __call__(self, part: str, body: Callable[..., Any]) -> Callable[..., Any]:
        """The body, made harmless."""
        forks, off = self._forks, self.off

        def guarded(*args: Any) -> Any:
            if _forks.count != forks or part in off:
                return None
            outermost = not self._inside
            if outermost:
                self._began = time.perf_counter()
                self._inside = True
            try:
                return body(*args)
            except TrainingDiverged:
                raise  # as the user asked
            except Exception as error:
                if self.strict or _came_from_signal_handler(error):
                    raise
                self.off[part] = f"{type(error).__name__}: {error}"
                with contextlib.suppress(Exception):  # to tell of a failure may fail, and must not reach the training
                    self._on_failure(part, error)
                return None
            finally:
                if outermost:
                    self._inside = False
                    self._seconds += time.perf_counter() - self._began

        return guarded


def _came_from_signal_handler(error: Exception) -> bool:
    """Whether the script's own handler raised this, by chance while our code was running: then it is the script's."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {code for handler in handlers if (code := _code_of(handler)) is not None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler: Any) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    code = getattr(function, "__code__", None) or getattr(getattr(type(handler), "__call__", None), "__code__", None)  # noqa: B004
    return code if isinstance(code, CodeType) else None
