"""Restores what torch keeps for a thread after an exception, such as Ctrl-C, has ended our code in the middle of it.

Restored are: whether gradients are recorded, which modes are on, and whatever `untracked` has turned off. Guarantees:
nothing is changed where all is as it was; repeating it does no harm.

Ctrl-C comes between any two lines, also within `__enter__` and `__exit__` of what is written in Python, as
`torch.no_grad` is: a `with` alone does not undo what it began.
"""

from __future__ import annotations

import functools
import signal
import threading
import traceback
from collections.abc import Sequence
from types import CodeType
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor, is_grad_enabled
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from mlflow_stability.errors import TrainingDiverged
from mlflow_stability.probes.hooks import torch_api

# Whether gradients are recorded, and the modes that see functions.
ThreadState: TypeAlias = tuple[bool, tuple[Any, ...]]

_NONE: tuple[Any, ...] = ()
# Needed to change the modes of a thread.
FUNCTION_STACK = (
    "len_torch_function_stack",
    "get_function_stack_at",
    "pop_torch_function_stack",
    "push_on_torch_function_stack",
)
_PACKAGE = __name__.partition(".")[0] + "."


class OwnMode(TorchFunctionMode):
    """A mode of ours, which is removed once it is not wanted any more."""

    def wanted(self) -> bool:
        """Whether the pass that it observes still runs."""
        return False


class _Entered(threading.local):
    """Contexts that this thread has entered and not left."""

    def __init__(self) -> None:
        self.contexts: list[untracked] = []


_entered = _Entered()


def noted() -> ThreadState:
    """Return what torch keeps for this thread; modes of ours that Ctrl-C has left behind are removed."""
    # Runs before every piece of our code, so it asks torch two questions and no more.
    return is_grad_enabled(), _modes() if torch_api.len_torch_function_stack() else _NONE


def _modes() -> tuple[Any, ...]:
    modes = tuple(function_modes())
    if any(isinstance(mode, OwnMode) and not mode.wanted() for mode in modes):
        modes = _wanted(modes)
        _restack(modes)
    return modes


def function_modes() -> list[Any]:
    """Return the function modes of this thread, the one on top last."""
    if not torch_api.has(*FUNCTION_STACK):
        return []  # then none of ours is among them
    return [torch_api.get_function_stack_at(at) for at in range(torch_api.len_torch_function_stack())]


def remove_mode(mode: OwnMode) -> None:
    """Remove a mode from the stack of this thread, whatever is on top of it."""
    modes = function_modes()
    if any(other is mode for other in modes):
        _restack([other for other in modes if other is not mode])


def restore_thread_state(state: ThreadState, interrupted: bool = True) -> None:
    """Restore a state; with `interrupted`, end whatever we were counting in this thread as well."""
    try:
        _restore(state, interrupted)
    except BaseException:  # Ctrl-C again, in the middle of this
        _restore(state, interrupted)
        raise


def _restore(state: ThreadState, interrupted: bool) -> None:
    gradients, modes = state
    contexts = _entered.contexts
    while contexts:
        contexts[-1].undo()
        contexts.pop()
    if is_grad_enabled() is not gradients:
        torch_api.set_grad_enabled(gradients)
    now = function_modes()
    if len(now) != len(modes) or any(mode is not saved for mode, saved in zip(now, modes, strict=True)):
        _restack(_wanted(modes))
    while interrupted:
        top = torch_api.current_dispatch_mode() if torch_api.has("current_dispatch_mode") else None
        if top is None or not type(top).__module__.startswith(_PACKAGE):
            break
        top.__exit__(None, None, None)


def _wanted(modes: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([mode for mode in modes if not isinstance(mode, OwnMode) or mode.wanted()])


def _restack(modes: Sequence[Any]) -> None:
    while torch_api.len_torch_function_stack():
        torch_api.pop_torch_function_stack()
    for mode in modes:
        torch_api.push_on_torch_function_stack(mode)


def raised_by_script(failure: BaseException, before: BaseException | None) -> BaseException | None:
    """Return what the script or its user raised while our code ran: Ctrl-C, an exit, or an error of a signal handler.

    It is found also where a clean-up failed over it. `before` is the exception that the script was handling already.
    """
    seen: list[BaseException] = []
    to_see: list[BaseException | None] = [failure]
    while to_see:
        error = to_see.pop()
        if error is None or error is before or any(error is other for other in seen):
            continue
        if isinstance(error, TrainingDiverged | KeyboardInterrupt | SystemExit) or _came_from_signal_handler(error):
            return error
        seen.append(error)
        to_see += (error.__cause__, error.__context__)
    return None


def _came_from_signal_handler(error: BaseException) -> bool:
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {code for handler in handlers if (code := _code_of(handler)) is not None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler: Any) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)
    code = getattr(function, "__code__", None) or getattr(getattr(type(handler), "__call__", None), "__code__", None)  # noqa: B004
    return code if isinstance(code, CodeType) else None


_PLAIN = (Tensor, Parameter)
_DEVICES = ("cpu", "cuda")
_OPERATIONS = ("Python", "PythonTLSSnapshot")  # keys by which operations reach modes


class untracked:  # noqa: N801 # it is used as `contextlib.suppress` is
    """Context in which operations run outside autograd, autocast and modes."""

    __slots__ = ("_autocast", "_begun", "_functions", "_gradients", "_operations")

    def __init__(self) -> None:
        self._begun = False

    def __enter__(self) -> None:
        torch_api.need("set_dispatch_key_excluded")  # to be undone by it
        self._gradients = torch.is_grad_enabled()
        self._autocast = [device for device in _DEVICES if torch.is_autocast_enabled(device)]
        keys = [getattr(torch_api.DispatchKey, name) for name in _OPERATIONS]
        self._operations = [key for key in keys if not torch_api.is_dispatch_key_excluded(key)]
        self._functions = torch_api.DisableTorchFunction()
        _entered.contexts.append(self)
        self._begun = True
        self._functions.__enter__()
        for key in self._operations:
            torch_api.set_dispatch_key_excluded(key, True)
        torch_api.set_grad_enabled(False)
        for device in self._autocast:
            torch.set_autocast_enabled(device, False)

    def __exit__(self, *_: object) -> None:
        self.undo()
        if _entered.contexts[-1:] == [self]:  # else Ctrl-C has undone it
            _entered.contexts.pop()

    def undo(self) -> None:
        """Leave; may be called several times."""
        if not self._begun:
            return
        for device in self._autocast:
            torch.set_autocast_enabled(device, True)
        torch_api.set_grad_enabled(self._gradients)
        for key in self._operations:
            torch_api.set_dispatch_key_excluded(key, False)
        self._functions.__exit__(None, None, None)


def is_measurable(value: object) -> TypeGuard[Tensor]:
    """Whether a value is a plain, non-empty tensor of numbers: not fake, sharded, sparse or transformed."""
    return (
        type(value) in _PLAIN
        and isinstance(value, Tensor)
        and value.layout is torch.strided
        and not value.is_nested
        and value.device.type != "meta"
        and value.numel() > 0
        and not value.is_complex()
        and not value.is_quantized
        and not torch_api.is_functorch_wrapped_tensor(value)
    )
