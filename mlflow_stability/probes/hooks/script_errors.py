"""Tells what the script or its user has raised from what went wrong in code of ours.

In: an exception that came up while our code ran. Out: Ctrl-C, an exit, or what a signal handler of the script raised,
also where a clean-up failed over it and put an error of its own in front. Guarantees: nothing is raised here.
"""

from __future__ import annotations

import functools
import signal
import traceback
from types import CodeType
from typing import Any

from mlflow_stability.errors import TrainingDiverged


def raised_by_script(failure: BaseException, before: BaseException | None) -> BaseException | None:
    """What the script or its user has raised while our code ran; None where nothing was.

    `before`: what the script was dealing with already.
    """
    seen: list[BaseException] = []
    to_see: list[BaseException | None] = [failure]
    while to_see:
        each = to_see.pop()
        if each is None or each is before or any(each is one for one in seen):
            continue
        if isinstance(each, TrainingDiverged | KeyboardInterrupt | SystemExit) or _came_from_signal_handler(each):
            return each
        seen.append(each)
        to_see += (each.__cause__, each.__context__)
    return None


def _came_from_signal_handler(error: BaseException) -> bool:
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
