"""Hooks and patches in torch, as they are installed and removed.

Guarantees: after `remove`, each patched name holds the very object that it held before. Where other code has patched
the same name later, its patch stays and ours beneath it becomes a plain call. What the script compiles stays the same
code: torch breaks its graph at every optimizer step itself, so that a hook adds no break.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from functools import partial
from threading import get_ident
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch.compiler import is_compiling
from torch.utils.hooks import RemovableHandle

from mlflow_stability.probes.hooks import torch_api

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
