"""Puts right what torch keeps for a thread when an exception, such as Ctrl-C, has ended our code in the middle of it.

In: what torch kept when our code began. Out: the same again: whether gradients are recorded, which modes are on, and
whatever `untracked` has turned off. Guarantees: nothing is changed where all is as it was; repeating it does no harm.

Ctrl-C comes between any two lines, also within `__enter__` and `__exit__` of what is written in Python, as
`torch.no_grad` is: a `with` alone does not undo what it began.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from torch import is_grad_enabled
from torch.overrides import TorchFunctionMode

from mlflow_stability.probes.hooks import torch_api

ThreadState: TypeAlias = tuple[bool, tuple[Any, ...]]
"""Whether gradients are recorded, and the modes that see functions."""

_NONE: tuple[Any, ...] = ()
FUNCTION_STACK = (
    "len_torch_function_stack",
    "get_function_stack_at",
    "pop_torch_function_stack",
    "push_on_torch_function_stack",
)
"""What it takes to change the modes of a thread."""
_PACKAGE = __name__.partition(".")[0] + "."


class OwnMode(TorchFunctionMode):
    """A mode of ours, that is taken off wherever it is met once it is not wanted any more."""

    def wanted(self) -> bool:
        """Whether what it looks at is still going on."""
        return False


class Reversible(Protocol):
    """Something that changes what torch keeps, and can undo it as often as it is asked to."""

    def undo(self) -> None:
        """Leave torch as it was before."""


class _Changes(threading.local):
    def __init__(self) -> None:
        self.made: list[Reversible] = []


_changes = _Changes()


def remember(change: Reversible) -> None:
    """Called right before a change is made in this thread."""
    _changes.made.append(change)


def forget(change: Reversible) -> None:
    """Called when it was undone."""
    made = _changes.made
    if made and made[-1] is change:
        made.pop()


def noted() -> ThreadState:
    """What torch keeps for this thread now, but for modes of ours that Ctrl-C has left behind: they are taken off.

    This runs before every piece of our code, so it asks torch two questions and no more.
    """
    return is_grad_enabled(), _modes() if torch_api.len_torch_function_stack() else _NONE


def _modes() -> tuple[Any, ...]:
    modes = tuple(function_modes())
    if any(isinstance(each, OwnMode) and not each.wanted() for each in modes):
        modes = _wanted(modes)
        _restack(modes)
    return modes


def function_modes() -> list[Any]:
    """The modes of this thread that see functions, the one on top last."""
    if not torch_api.has(*FUNCTION_STACK):
        return []  # none of ours can be among them then
    return [torch_api.get_function_stack_at(at) for at in range(torch_api.len_torch_function_stack())]


def remove_mode(mode: OwnMode) -> None:
    """Take a mode off the stack of this thread, whatever was put on top of it."""
    modes = function_modes()
    if any(each is mode for each in modes):
        _restack([each for each in modes if each is not mode])


def restore_thread_state(state: ThreadState, interrupted: bool = True) -> None:
    """Make it that again. `interrupted`: whatever we were counting or following in this thread is over."""
    try:
        _put_right(state, interrupted)
    except BaseException:  # Ctrl-C again, in the middle of this
        _put_right(state, interrupted)
        raise


def _put_right(state: ThreadState, interrupted: bool) -> None:
    gradients, modes = state
    made = _changes.made
    while made:
        made[-1].undo()
        made.pop()
    if is_grad_enabled() is not gradients:
        torch_api.set_grad_enabled(gradients)
    now = function_modes()
    if len(now) != len(modes) or any(mine is not theirs for mine, theirs in zip(now, modes, strict=True)):
        _restack(_wanted(modes))
    while interrupted:
        top = torch_api.current_dispatch_mode() if torch_api.has("current_dispatch_mode") else None
        if top is None or not type(top).__module__.startswith(_PACKAGE):
            break
        top.__exit__(None, None, None)


def _wanted(modes: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([each for each in modes if not isinstance(each, OwnMode) or each.wanted()])


def _restack(modes: Sequence[Any]) -> None:
    """Have exactly these modes on the stack; they are not told."""
    while torch_api.len_torch_function_stack():
        torch_api.pop_torch_function_stack()
    for each in modes:
        torch_api.push_on_torch_function_stack(each)
