"""Where a forward pass is: the name of the running module, and the line of the user's code.

In: a model; Python's call stack. Out: a module name; ``model.py:41 in Block.forward``. Guarantees: hooks are on the
modules only inside the `with` and change nothing. Frames of torch, of Python's library and of this package are
skipped; a model made of torch's modules alone has no such line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.nn import Module
from torch.utils.hooks import RemovableHandle


class ModulePath:
    """The modules that are being run, the innermost last."""

    def __init__(self) -> None:
        self._names: list[str] = []

    @property
    def name(self) -> str:
        """The innermost of them; empty: the model itself."""
        return self._names[-1] if self._names else ""

    @contextmanager
    def of(self, model: Module) -> Iterator[ModulePath]:
        """Follow a forward pass of this model."""
        handles: list[RemovableHandle] = []
        try:
            for name, module in Module.named_modules(model):
                if name:
                    handles.append(module.register_forward_pre_hook(partial(self._enter, name)))
                    handles.append(module.register_forward_hook(self._leave, always_call=True))
            yield self
        finally:
            for handle in handles:
                handle.remove()
            self._names.clear()

    def _enter(self, name: str, _module: Module, _args: Any) -> None:
        self._names.append(name)

    def _leave(self, _module: Module, _args: Any, _outputs: Any) -> None:
        if self._names:
            self._names.pop()


_HERE = str(Path(__file__).absolute().parents[2]) + os.sep
_TORCH = str(Path(torch.__file__).absolute().parent) + os.sep
_LIBRARY = str(Path(os.__file__).absolute().parent) + os.sep
_PACKAGES = f"{os.sep}site-packages{os.sep}"


def user_line(outermost: CodeType | None = None) -> str:
    """The innermost line that is the user's, inside of the function whose code is `outermost`; empty without one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not outermost:
        file = frame.f_code.co_filename
        if not _is_passed_over(file):
            name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)  # Python 3.10 knows no qualified name
            return f"{Path(file).name}:{frame.f_lineno} in {name.replace('<locals>.', '')}"
        frame = frame.f_back
    return ""


def _is_passed_over(file: str) -> bool:
    if file.startswith(_HERE):
        return not file.startswith(_HERE + "demo" + os.sep)  # the model of the demo is a user's
    if file.startswith((_TORCH, "<")):
        return True
    return file.startswith(_LIBRARY) and _PACKAGES not in file
