"""Keeps our errors out of the training, and counts what we cost it.

Guarantees: an error of ours inside a hook is reported once, switches that part off, and the training goes on as if the
part had never been there. Under ``strict`` it is raised. What the user raises, Ctrl-C among it, always passes, also
where a clean-up of ours fails over it; torch is then left as it was found, and the part forgets what it had half done.
In a forked child nothing of ours runs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from sys import exc_info
from time import perf_counter
from typing import Any
from weakref import WeakSet

from torch import is_grad_enabled

from mlflow_stability.errors import TorchLacksError, TrainingDiverged
from mlflow_stability.probes.hooks import (
    ThreadState,
    noted,
    raised_by_script,
    restore_thread_state,
    torch_api,
    uncompiled,
)

OnFailure = Callable[[str, Exception], None]

FORGIVEN = 3
"""So many errors of a part do not switch it off after Ctrl-C has ended it half-way: what it holds may be torn."""


_guards: WeakSet[PartGuard] = WeakSet()


def _forked() -> None:
    for each in _guards:
        each.is_on.clear()


os.register_at_fork(after_in_child=_forked)


class PartGuard:
    """Wraps the bodies of hooks."""

    def __init__(self, strict: bool, on_failure: OnFailure) -> None:
        self.off: dict[str, str] = {}
        """The parts that are switched off, and why."""
        self.strict = strict
        self._on_failure = on_failure
        self.is_on = [True]
        """Empty in a forked child: cheaper to ask at each hook than the pid."""
        _guards.add(self)
        self._seconds = self._began = 0.0
        """Time so far, and when the hook began that is running; 0: none is."""
        self._handled: BaseException | None = None
        """What the script was handling when the hook began."""
        self._torn: dict[str, int] = {}
        """Parts that an interruption has ended half-way, and how many errors of theirs are still forgiven."""

    @property
    def seconds(self) -> float:
        """Time spent in our code so far, up to this moment also where it is our code that asks."""
        return self._seconds + (perf_counter() - self._began if self._began else 0.0)

    def __call__(self, part: str, body: Callable[..., Any]) -> Callable[..., Any]:
        """The body, made harmless."""
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
                del failure, raised  # they hold this frame, which would hold them, and all that was in it

        return uncompiled(guarded)

    def contain(self, part: str, failure: BaseException, forget: Callable[[], None] | None = None) -> None:
        """Runs within ``except`` where a part of a guarded hook has failed: what is ours ends here, the hook goes on.

        The same as a wrapped body within another one, without its calls at each step.
        """
        try:
            if self._to_be_raised(part, failure, self._handled, forget) is not None:
                raise
        finally:
            del failure  # it holds this frame

    def begin_anew(self) -> None:
        """Another training begins: what failed in the one before may work in this one."""
        self.off.clear()
        self._torn.clear()

    def _to_be_raised(
        self, part: str, failure: BaseException, handled: BaseException | None, forget: Callable[[], None] | None
    ) -> BaseException | None:
        """What is the script's; what is ours ends here. `handled`: what the script was dealing with already."""
        theirs = raised_by_script(failure, handled)
        if theirs is None and not isinstance(failure, Exception):
            theirs = failure
        if isinstance(theirs, TrainingDiverged):
            return theirs  # as the user asked
        if theirs is not None:
            self._torn[part] = FORGIVEN
            if forget is not None:
                with contextlib.suppress(Exception):  # then its next errors are forgiven
                    forget()
            return theirs
        assert isinstance(failure, Exception)
        if self._torn.get(part, 0):
            self._torn[part] -= 1
            return None
        if isinstance(failure, TorchLacksError):  # said when watching began, with all else that this torch lacks
            self.off[part] = str(failure)
            return None
        if self.strict:
            return failure
        self.off[part] = f"{type(failure).__name__}: {failure}"
        with contextlib.suppress(Exception):  # to tell of a failure may fail, and must not reach the training
            self._on_failure(part, failure)
        return None
