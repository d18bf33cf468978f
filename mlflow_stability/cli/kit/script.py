"""Runs a script or module as Python itself would, recorded from the moment it has loaded torch.

In: its path or name, and its arguments. Out: its exit code, as `SystemExit`. Guarantees: `sys.argv`, `sys.path[0]` and
the module `__main__` are those of `python script.py`; tracebacks have no frame of this package; torch is loaded only if
the script does so.
"""

from __future__ import annotations

import importlib.util
import io
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, NoReturn

import mlflow_stability
from mlflow_stability.cli.kit.spawned import record_spawned
from mlflow_stability.errors import SettingsError, StabilityError
from mlflow_stability.reports.escape import plain

COULD_NOT, FAILED, INTERRUPTED = 2, 1, 130


@dataclass(frozen=True, slots=True)
class Script:
    """What to run, and how to record it."""

    target: str
    """A path; with `is_module`, the name of a module or package."""
    arguments: tuple[str, ...]
    settings: Mapping[str, Any]
    """Arguments of `autolog()`."""
    is_module: bool = False

    def __call__(self) -> int:
        """Run it to its end; 0 where it said nothing else."""
        _ours = sys.modules.get("__main__")  # kept, for this very code runs in it
        begin_recording(self.settings)  # before loading: a package that the module is in may load torch
        record_spawned(begin_recording, self.settings)
        try:
            code, main = self._loaded()
        except StabilityError as error:
            _refuse(error)
        sys.modules["__main__"] = main
        try:
            exec(code, main.__dict__)
        except SystemExit:
            raise
        except BaseException as error:
            # Not `sys.exit`, which would be recorded as how the training ended, in place of this error.
            sys.excepthook(type(error), error.with_traceback(_of_script(error, main)), error.__traceback__)
            raise SystemExit(INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED) from None
        return 0

    def _loaded(self) -> tuple[CodeType, ModuleType]:
        """The code and the module `__main__` for it, with `sys.argv` and `sys.path` as they have to be."""
        path = Path(self.target)
        if self.is_module:
            _first_on_path(str(Path.cwd()))
            spec, code = _module(self.target)
        elif path.is_dir() or (path.is_file() and zipfile.is_zipfile(path)):
            _first_on_path(str(path.absolute()))
            spec, code = _module("__main__", self.target)
        else:
            return self._loaded_file(path)
        sys.argv[:] = [self.target if not self.is_module else str(spec.origin), *self.arguments]
        main = ModuleType("__main__")
        main.__dict__.update(
            __file__=spec.origin, __spec__=spec, __loader__=spec.loader, __package__=spec.parent, __cached__=spec.cached
        )
        return code, main

    def _loaded_file(self, path: Path) -> tuple[CodeType, ModuleType]:
        try:
            with io.open_code(str(path.absolute())) as file:
                text = file.read()
        except OSError as error:
            raise SettingsError(f"The script {self.target!r} cannot be read: {error.strerror}.") from None
        _first_on_path(str(path.resolve().parent))
        sys.argv[:] = [self.target, *self.arguments]
        file_name = str(path.absolute())
        main = ModuleType("__main__")
        loader = SourceFileLoader("__main__", file_name)
        main.__dict__.update(__file__=file_name, __spec__=None, __loader__=loader, __package__=None, __cached__=None)
        try:
            return compile(text, file_name, "exec", dont_inherit=True), main
        except (SyntaxError, ValueError) as error:
            sys.excepthook(type(error), error.with_traceback(None), None)
            raise SystemExit(FAILED) from None


def begin_recording(settings: Mapping[str, Any]) -> None:
    """Call `autolog()` as soon as this process has loaded torch."""

    def begin() -> None:
        try:
            mlflow_stability.autolog(**settings)
        except StabilityError as error:
            _refuse(error)

    after_torch(begin)


def _refuse(error: StabilityError) -> NoReturn:
    sys.stderr.write(f"mlflow-stability: {plain(str(error))}\n")
    raise SystemExit(COULD_NOT) from None


def _module(name: str, within: str | None = None) -> tuple[ModuleSpec, CodeType]:
    """A module, or the `__main__` of a package."""
    sys.modules.pop("__main__", None)  # it is ours, and would be found
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError, AttributeError) as error:
        raise SettingsError(f"The module {name!r} cannot be loaded: {error}.") from None
    get_code = getattr(None if spec is None else spec.loader, "get_code", None)
    code = None if spec is None or get_code is None else get_code(spec.name)
    if spec is None or code is None:
        raise SettingsError(f"No module named {name if within is None else f'{name} in {within}'} that could be run.")
    return spec, code


def _first_on_path(place: str) -> None:
    """`sys.path[0]` is where the script is, not where this command is."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = place


def _of_script(error: BaseException, main: ModuleType) -> TracebackType | None:
    """The traceback from the first frame of the script on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals is not main.__dict__:
        trace = trace.tb_next
    return trace


def after_torch(act: Callable[[], None]) -> None:
    """Call this as soon as torch has been loaded, by whomever; at once where it has been."""
    if "torch" in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _TorchFinder(act))


class _TorchFinder(MetaPathFinder):
    """Finds torch where Python finds it, and learns when it has been loaded."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of torch, with a loader that calls back; None for anything else."""
        if name != "torch":
            return None
        others = (each for each in sys.meta_path if each is not self)
        spec = next((found for each in others if (found := each.find_spec(name, path, target)) is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _NotifyingLoader(spec.loader, self._loaded)
        return spec

    def _loaded(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._act()


class _NotifyingLoader(Loader):
    """Loads a module by its own loader, then calls back."""

    def __init__(self, loader: Loader, act: Callable[[], None]) -> None:
        self._loader, self._act = loader, act

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As its own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Likewise; the module keeps no trace of this loader."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._act()
