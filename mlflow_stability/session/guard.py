"""Keep our errors out of the training, and measure what we cost it.

Guarantees: an error of ours inside a hook is reported once, switches that part off, and the training continues without
the part; ``strict`` raises it. The script's own exceptions, Ctrl-C among them, always pass, even where our clean-up
fails on them; torch's state is restored, and the part forgets what was half done. In a forked child nothing of ours
runs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from enum import Enum
from sys import exc_info
from time import perf_counter
from typing import Any
from weakref import WeakSet

from torch import is_grad_enabled

from mlflow_stability.errors import TorchLacksError, TrainingDiverged
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.hook_handles import uncompiled
from mlflow_stability.probes.hooks.thread_state import ThreadState, noted, raised_by_script, restore_thread_state

OnFailure = Callable[[str, Exception], None]

FORGIVEN = 3
"""Errors of a part that do not switch it off after Ctrl-C has interrupted it: its state may be torn."""


_guards: WeakSet[PartGuard] = WeakSet()


def _forked() -> None:
    for guard in _guards:
        guard.is_on.clear()


os.register_at_fork(after_in_child=_forked)


class PartGuard:
    """Wraps the bodies of hooks."""

    def __init__(self, strict: bool, on_failure: OnFailure) -> None:
        self.off: dict[str, str] = {}  # parts that are switched off, and why
        self.strict = strict
        self._on_failure = on_failure
        self.is_on = [True]  # empty in a forked child: cheaper to check at each hook than the pid
        _guards.add(self)
        self._seconds = self._began = 0.0  # total time, and the start of the running hook; 0: none
        self._handled: BaseException | None = None
        """The exception that the script was handling when the hook began."""
        self._torn: dict[str, int] = {}  # interrupted parts, and how many of their errors are still ignored

    @property
    def seconds(self) -> float:
        """Time spent in our code, including the running hook."""
        return self._seconds + (perf_counter() - self._began if self._began else 0.0)

    def __call__(self, part: str, body: Callable[..., Any]) -> Callable[..., Any]:
        is_on, off = self.is_on, self.off
        forget = getattr(getattr(body, "__self__", None), "forget", None)

        def guarded(*args: Any) -> Any:
            if part in off or not is_on:
                return None
            if self._began:
                try:
                    return body(*args)
                except BaseException as error:
                    failure = error
            else:
                state: ThreadState | None = None
                try:
                    self._began, self._handled = perf_counter(), exc_info()[1]
                    # Nearly always there are no modes; to ask here is one call of ours less at every hook.
                    state = noted() if torch_api.len_torch_function_stack() else (is_grad_enabled(), ())
                    return body(*args)
                except BaseException as error:
                    if state is not None:
                        restore_thread_state(state, not isinstance(error, Exception))
                    failure = error
                finally:
                    began, self._began, self._handled = self._began, 0.0, None
                    self._seconds += perf_counter() - began if began else 0.0
            raised = self._to_be_raised(part, failure, exc_info()[1], forget)
            if raised is None:
                del failure
                return None
            try:
                raise raised
            finally:
                del failure, raised  # they refer to this frame: break the reference cycle

        return uncompiled(guarded)

    def contain(self, part: str, failure: BaseException, forget: Callable[[], None] | None = None) -> None:
        """Contain the error of a part inside a guarded hook; call it within ``except``.

        Like a wrapped body within another one, without its calls at each step.
        """
        try:
            if self._to_be_raised(part, failure, self._handled, forget) is not None:
                raise
        finally:
            del failure  # it holds this frame

    def restart(self) -> None:
        """Switch all parts on for another training."""
        self.off.clear()
        self._torn.clear()

    def _to_be_raised(
        self, part: str, failure: BaseException, handled: BaseException | None, forget: Callable[[], None] | None
    ) -> BaseException | None:
        """Return what is to be raised; None for an error of ours. `handled`: what the script was handling already."""
        script_error = raised_by_script(failure, handled)
        if script_error is None and not isinstance(failure, Exception):
            script_error = failure
        if isinstance(script_error, TrainingDiverged):
            return script_error  # as the user asked
        if script_error is not None:
            self._torn[part] = FORGIVEN
            if forget is not None:
                with contextlib.suppress(Exception):  # then its next errors are forgiven
                    forget()
            return script_error
        assert isinstance(failure, Exception)
        if self._torn.get(part, 0):
            self._torn[part] -= 1
            return None
        if isinstance(
            failure, TorchLacksError
        ):  # reported when recording began, with everything else that this torch lacks
            self.off[part] = str(failure)
            return None
        if self.strict:
            return failure
        self.off[part] = f"{type(failure).__name__}: {failure}"
        with contextlib.suppress(Exception):  # to tell of a failure may fail, and must not reach the training
            self._on_failure(part, failure)
        return None


class AutopilotPart(str, Enum):
    """Parts of the autopilot that are switched off alone; the value is the name in messages."""

    AUTOPILOT = "the autopilot"
    AUTOPILOT_END = "the autopilot's end"
    CHECKPOINTS = "checkpoints"
    CLIPPING_AND_EASING = "clipping and easing"
    DECISIONS = "decisions"
    FORWARD_PASSES = "forward passes"
    GUARD = "the guard"
    LOSS_SCALE = "the loss scale"
    PUTTING_BACK = "putting back"
    RANKS = "agreement of processes"
    ROLLBACK = "rollback"
    SMALLER_STEPS = "smaller steps"
    SNAPSHOTS = "snapshots"
    STOP_CONDITIONS = "stop conditions"
    TRAINING_PARTS = "the training's parts"
    UNDO_ROLLBACK = "undoing a rollback"

    __str__ = str.__str__
