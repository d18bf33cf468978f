"""Everything we have put into torch, so that all of it can be taken out again.

Guarantees: after `remove`, each patched name holds the very object that it held before. Where somebody else has patched
the same name on top of us, theirs stays and ours beneath it becomes a plain call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any

from torch.compiler import is_compiling
from torch.utils.hooks import RemovableHandle

from mlflow_stability.probes.hooks import torch_api
from mlflow_stability.probes.hooks.training_thread import TrainingThread, is_cuda_used
from mlflow_stability.probes.hooks.uncompiled import uncompiled_itself

Around = Callable[..., Any]
"""``around(original, *args, **kwargs)``: what runs in the place of the original."""


_INHERITED = object()


class HookHandles:
    """The hooks and patches of one watch."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self._live = [False]

    def hold(self, handle: RemovableHandle) -> None:
        """Remember a hook that torch itself can take out."""
        self._live[0] = True
        self._undo.append(handle.remove)

    def patch(self, owner: Any, name: str, around: Around, thread: TrainingThread | None = None) -> None:
        """Put `around` in the place of a function of a module or class; `thread`: only where that one trains."""
        original = getattr(owner, name)
        live = self._live
        live[0] = True

        @functools.wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            # As a rule these three answers do for `trains_elsewhere`, which would be one more call at every hook.
            # Whether this is being compiled comes first, for the compiler must see nothing else.
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
        """Put `around` in the place of a symbol of torch; nothing is done where that one is not there."""
        place = torch_api.owner_of(name)
        if place is not None:
            self.patch(*place, around, thread)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Put `value` itself in the place of an attribute; one that was inherited is inherited again afterwards."""
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
        """Whether there is something to take out."""
        return bool(self._undo)

    def remove(self) -> None:
        """Take everything out, last in first out."""
        self._live[0] = False
        self._live = [False]  # a patch of ours that somebody wrapped stays a plain call if we come back
        while self._undo:
            self._undo.pop()()
