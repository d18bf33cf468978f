"""Note and prevent what no reader may do: write outside its folder, start processes, connect, run foreign code."""

from __future__ import annotations

import os
import sys
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NEVER = (
    "subprocess.",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "socket.connect",
    "socket.bind",
)
_ON_PATHS = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "shutil.")
_FOREIGN = frozenset({"os", "posix", "nt", "sys", "subprocess", "shutil", "socket", "runpy", "importlib", "ctypes"})
_CALLED = frozenset({"eval", "exec", "open", "compile", "__import__", "getattr", "breakpoint", "input"})


class ForbiddenError(BaseException):
    """Raised at the act itself, so that it does not happen; no `except Exception` takes it."""


class Confinement:
    """What happens between `begin` and `end`; a hook of the interpreter sees it, however it was reached."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.path.realpath(folder) + os.sep
        self._trusted = tuple({os.path.realpath(path) + os.sep for path in (sys.prefix, sys.base_prefix, *sys.path)})
        self._active = False
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Watch a block."""
        self._active = True
        try:
            yield
        finally:
            self._active = False

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._active and (reason := self._forbidden(event, arguments)):
            self.seen.append(reason)
            raise ForbiddenError(reason)

    def _forbidden(self, event: str, arguments: tuple[Any, ...]) -> str:
        if event == "open":
            path, _, flags = arguments
            outside = isinstance(flags, int) and flags & _WRITING and not self._is_inside(path)
            return f"writes {path!r}" if outside else ""
        if event.startswith(_NEVER):
            return f"{event}{arguments!r}"[:300]
        if event.startswith(_ON_PATHS):
            paths = [path for path in arguments if isinstance(path, str | bytes | os.PathLike)]
            return "" if all(map(self._is_inside, paths)) else f"{event}{paths!r}"
        if event == "pickle.find_class":
            module, name = arguments
            is_known = module.partition(".")[0] in _FOREIGN or (
                module in ("builtins", "__builtin__") and name in _CALLED
            )
            return f"looks up {module}.{name}" if is_known else ""
        if event == "exec":
            code = arguments[0]
            return "" if not isinstance(code, CodeType) or self._is_trusted(code.co_filename) else f"runs {code!r}"
        return ""

    def _is_inside(self, path: Any) -> bool:
        if isinstance(path, int) or path in ("/dev/null", b"/dev/null"):
            return True
        return os.path.realpath(os.fsdecode(path)).startswith(self._folder)

    def _is_trusted(self, name: str) -> bool:
        if name.startswith(("<frozen ", "<__array_function__")) or name == "<template>" or name.endswith(".html"):
            return True
        return os.path.realpath(name).startswith(self._trusted) or _is_made_of_text()


def _is_made_of_text() -> bool:
    """Whether a module is being loaded, where data classes are texts at first, or annotations are evaluated."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename in ("<frozen importlib._bootstrap>", typing.__file__):
            return True
        frame = frame.f_back
    return False
