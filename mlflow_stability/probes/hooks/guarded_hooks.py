"""Hooks and patches in torch, and the guard that keeps our errors out of the training and measures what we cost it.

Guarantees: after `remove`, each patched name holds the very object that it held before. Where other code has patched
the same name later, its patch stays and ours beneath it becomes a plain call. What the script compiles stays the same
code: torch breaks its graph at every optimizer step itself, so that a hook adds no break.

An error of ours inside a hook is reported once, switches that part off, and the training continues without the part;
``strict`` raises it. The script's own exceptions, Ctrl-C among them, always pass, even where our clean-up fails on
them; torch's state is restored, and the part forgets what was half done. In a forked child nothing of ours runs.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from functools import partial
from sys import exc_info
from threading import get_ident
from time import perf_counter
from types import FunctionType
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import is_grad_enabled
from torch.compiler import is_compiling
from torch.utils.hooks import RemovableHandle

from mlflow_stability.errors import TorchLacksError, TrainingDiverged
from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.thread_state import ThreadState, noted, raised_by_script, restore_thread_state

F = TypeVar("F", bound=Callable[..., Any])


_NEEDED = ("set_code_exec_strategy", "FrameExecStrategy", "FrameAction")


def uncompiled(function: F) -> F:
    """Have torch.compile never compile this function, nor anything that it calls."""
    _skip(function, "SKIP")
    return function


def uncompiled_hook(function: F) -> F:
    """The same; compiled code calls the function instead of containing it."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return uncompiled(function)


def uncompiled_itself(function: Callable[..., Any]) -> None:
    """Have torch.compile never compile this function alone: what it calls may be the script's."""
    while isinstance(function, partial):
        function = function.func
    _skip(getattr(function, "__func__", function), "DEFAULT")


def _skip(function: Callable[..., Any], callees: str) -> None:
    if isinstance(function, FunctionType) and torch_api.has(*_NEEDED):
        action = torch_api.FrameAction
        strategy = torch_api.FrameExecStrategy(action.SKIP, getattr(action, callees))
        torch_api.set_code_exec_strategy(function.__code__, strategy)


is_cuda_used: Callable[[], bool] = torch.cuda.is_initialized  # without it no stream is captured


class TrainingThread:
    """The thread that trains: hooks cannot tell the captures of two threads apart.

    It is the first thread that computes gradients or takes a step; when it has ended, the next. Threads that Python
    did not start are autograd's own, and work for the caller of backward.
    """

    def __init__(self, on_foreign: Callable[[], None]) -> None:
        self.ident = 0  # 0: unknown yet
        self._thread: threading.Thread | None = None
        self._on_foreign = on_foreign
        self._is_reported = False

    @uncompiled
    def trains_elsewhere(self) -> bool:
        """Whether what happens now is compiled, captured to be run later, or in another thread."""
        if torch.compiler.is_compiling():
            return True
        if is_cuda_used() and torch.cuda.is_current_stream_capturing():
            return True
        return threading.get_ident() != self.ident and self.is_foreign()

    def is_foreign(self) -> bool:
        """Whether the caller runs in another thread than the one that trains; reported once."""
        if threading.get_ident() == self.ident and self._thread is not None:
            return False
        thread = threading.current_thread()
        if isinstance(thread, threading._DummyThread):
            return False
        if self._thread is None or not self._thread.is_alive():
            self._thread, self.ident = thread, threading.get_ident()
            return False
        if not self._is_reported:
            self._is_reported = True
            self._on_foreign()
        return True


Around = Callable[..., Any]  # called as ``around(original, *args, **kwargs)``


_INHERITED = object()


class HookHandles:
    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._live = [False]

    def hold(self, handle: RemovableHandle) -> None:
        self._live[0] = True
        self._undo.append(handle.remove)

    def patch(self, owner: Any, name: str, around: Around, thread: TrainingThread | None = None) -> None:
        """Replace a function of a module or class by `around`; with `thread`, only calls in the thread that trains."""
        original = getattr(owner, name)
        live = self._live
        live[0] = True

        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            # These three answers usually replace `trains_elsewhere`, which would be one more call at every hook.
            # Whether this is being compiled comes first: the compiler must see nothing else.
            if live[0] and (
                thread is None
                or not (is_compiling() or get_ident() != thread.ident or is_cuda_used())
                or not thread.trains_elsewhere()
            ):
                return around(original, *args, **kwargs)
            return original(*args, **kwargs)

        uncompiled_itself(patched)
        uncompiled_itself(around)
        self.replace(owner, name, patched)

    def patch_symbol(self, name: str, around: Around, thread: TrainingThread | None = None) -> None:
        """Replace a symbol of torch by `around`, if this torch has it."""
        place = torch_api.owner_of(name)
        if place is not None:
            self.patch(*place, around, thread)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute by `value`; one that was inherited is inherited again afterwards."""
        before = vars(owner).get(name, _INHERITED)
        setattr(owner, name, value)

        def undo() -> None:
            if vars(owner).get(name) is not value:
                return
            if before is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(undo)

    @property
    def hold_anything(self) -> bool:
        return bool(self._undo)

    def remove(self) -> None:
        self._live[0] = False
        self._live = [False]  # a patch of ours that other code wrapped stays a plain call
        while self._undo:
            self._undo.pop()()


OnFailure = Callable[[str, Exception], None]

FORGIVEN = 3  # errors of a part that do not switch it off after Ctrl-C has interrupted it: its state may be torn


_guards: WeakSet[PartGuard] = WeakSet()


def _forked() -> None:
    for guard in _guards:
        guard.is_on.clear()


os.register_at_fork(after_in_child=_forked)


class PartGuard:
    """Wraps the bodies of hooks; one returns None once its part is switched off, or when it failed."""

    def __init__(self, strict: bool, on_failure: OnFailure) -> None:
        self.off: dict[str, str] = {}  # parts that are switched off, and why
        self.strict = strict
        self._on_failure = on_failure
        self.is_on = [True]  # empty in a forked child: cheaper to check at each hook than the pid
        _guards.add(self)
        self._seconds = self._began = 0.0  # total time, and the start of the running hook; 0: none
        self._handled: BaseException | None = None  # the exception that the script was handling when the hook began
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
        if isinstance(failure, TorchLacksError):  # all that this torch lacks was reported when recording began
            self.off[part] = str(failure)
            return None
        if self.strict:
            return failure
        self.off[part] = f"{type(failure).__name__}: {failure}"
        with contextlib.suppress(Exception):  # to tell of a failure may fail, and must not reach the training
            self._on_failure(part, failure)
        return None
