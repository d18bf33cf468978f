"""`run`: run a training script with `autolog()`, without a line changed in it.

The arguments of `autolog()`, and the fields of `Options` and `RollbackPolicy`, are options of the command, but for
objects that only a script has. Torch is not loaded here.
"""

from __future__ import annotations

import importlib.util
import io
import pickle
import re
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from multiprocessing import spawn
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn, TypeVar

import click

import mlflow_stability
from mlflow_stability.errors import SettingsError, StabilityError
from mlflow_stability.manual.python_api import argument_meanings, field_meanings
from mlflow_stability.reports.escape import plain
from mlflow_stability.vocabulary.argument import boolean
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy
from mlflow_stability.vocabulary.settings import Options, Settings, value_of_text

# This module is loaded in spawned processes, without click: so these are not those of `main`.
_FAILED, _COULD_NOT, _INTERRUPTED = 1, 2, 130


@dataclass(frozen=True, slots=True)
class Script:
    target: str  # a path; with `is_module`, the name of a module or package
    arguments: tuple[str, ...]
    settings: Mapping[str, Any]
    is_module: bool = False

    def __call__(self) -> int:
        """Run it to its end; return 0, or raise `SystemExit` with its exit code."""
        _own_main = sys.modules.get("__main__")  # keep the module alive: this code may run in it
        begin_recording(self.settings)  # before loading: a package that the module is in may load torch
        _record_spawned(self.settings)
        try:
            code, main = self._load()
        except StabilityError as error:
            _refuse(error)
        sys.modules["__main__"] = main
        try:
            exec(code, main.__dict__)  # noqa: S102 - the script that the user asked to run
        except SystemExit:
            raise
        except BaseException as error:
            # Not `sys.exit`, which would be recorded as the end of the training in place of this error.
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_globals is not main.__dict__:
                trace = trace.tb_next
            sys.excepthook(type(error), error.with_traceback(trace), error.__traceback__)
            raise SystemExit(_INTERRUPTED if isinstance(error, KeyboardInterrupt) else _FAILED) from None
        return 0

    def _load(self) -> tuple[CodeType, ModuleType]:
        """Return the code and its module `__main__`; set `sys.argv` and `sys.path`."""
        path = Path(self.target)
        if self.is_module:
            _set_first_path(str(Path.cwd()))
            spec, code = _find_module(self.target)
        elif path.is_dir() or (path.is_file() and zipfile.is_zipfile(path)):
            _set_first_path(str(path.absolute()))
            spec, code = _find_module("__main__", self.target)
        else:
            return self._load_file(path)
        sys.argv[:] = [str(spec.origin) if self.is_module else self.target, *self.arguments]
        main = ModuleType("__main__")
        main.__dict__.update(
            __file__=spec.origin, __spec__=spec, __loader__=spec.loader, __package__=spec.parent, __cached__=spec.cached
        )
        return code, main

    def _load_file(self, path: Path) -> tuple[CodeType, ModuleType]:
        file_name = str(path.absolute())
        try:
            with io.open_code(file_name) as file:
                text = file.read()
        except OSError as error:
            raise SettingsError(f"The script {self.target!r} cannot be read: {error.strerror}.") from None
        _set_first_path(str(path.resolve().parent))
        sys.argv[:] = [self.target, *self.arguments]
        main = ModuleType("__main__")
        loader = SourceFileLoader("__main__", file_name)
        main.__dict__.update(__file__=file_name, __spec__=None, __loader__=loader, __package__=None, __cached__=None)
        try:
            return compile(text, file_name, "exec", dont_inherit=True), main
        except (SyntaxError, ValueError) as error:
            sys.excepthook(type(error), error.with_traceback(None), None)
            raise SystemExit(_FAILED) from None


def _find_module(name: str, within: str | None = None) -> tuple[ModuleSpec, CodeType]:
    """Return spec and code of a module, or of the `__main__` of a package."""
    sys.modules.pop("__main__", None)  # else our own would be found
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


def _set_first_path(place: str) -> None:
    """Set `sys.path[0]` to the place of the script, unless Python runs with -P."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = place


def _refuse(error: StabilityError) -> NoReturn:
    sys.stderr.write(f"mlflow-stability: {plain(str(error))}\n")
    raise SystemExit(_COULD_NOT) from None


def begin_recording(settings: Mapping[str, Any]) -> None:
    """Call `autolog()` as soon as this process has loaded torch."""

    def begin() -> None:
        try:
            mlflow_stability.autolog(**settings)
        except StabilityError as error:
            _refuse(error)

    if "torch" in sys.modules:
        begin()
    else:
        sys.meta_path.insert(0, _TorchFinder(begin))


class _TorchFinder(MetaPathFinder):
    """Finds torch where Python finds it, and calls back once it has been loaded."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of torch with a loader that calls back; None for anything else."""
        if name != "torch":
            return None
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _NotifyingLoader(spec.loader, self._on_load)
        return spec

    def _on_load(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._callback()


class _NotifyingLoader(Loader):
    """Loads a module by its own loader, then calls back."""

    def __init__(self, loader: Loader, callback: Callable[[], None]) -> None:
        self._loader, self._callback = loader, callback

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module as its own loader does; leave no trace of this loader in it."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._callback()


class _BeginWhenUnpickled:
    """Is unpickled in a spawned process before anything else, and begins to record there."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings

    def __reduce__(self) -> tuple[Callable[[Mapping[str, Any]], None], tuple[Mapping[str, Any]]]:
        return begin_recording, (self._settings,)


def _record_spawned(settings: Mapping[str, Any]) -> None:
    """Have every process that `multiprocessing` spawns from now on record, if the settings can be pickled."""
    try:
        pickle.dumps(settings)
    except Exception:  # whatever a setting raises: then those processes stay as they are
        return
    get_preparation_data = spawn.get_preparation_data

    def with_recording(name: str) -> dict[str, Any]:
        return {**get_preparation_data(name), "mlflow_stability": _BeginWhenUnpickled(settings)}

    spawn.get_preparation_data = with_recording


_F = TypeVar("_F", bound=Callable[..., Any])
_OPTIONS = {setting.name: setting for setting in fields(Options)}
# `extra_state` takes objects of the script.
_POLICY = {setting.name: setting for setting in fields(RollbackPolicy) if setting.name != "extra_state"}
_AUTOLOG = {setting.name: setting for setting in fields(Settings) if setting.name not in _OPTIONS}
_SETTINGS = {**_AUTOLOG, **_OPTIONS, **_POLICY}
_SECTIONS: Mapping[str, Mapping[str, Field[Any]]] = {
    "Arguments of autolog()": _AUTOLOG,
    "Fields of Options": _OPTIONS,
    "Fields of RollbackPolicy, with --rollback": _POLICY,
}
_FLAG_WORDS = boolean()["takes"].words
_CODE = re.compile(r"`([^`]*)`")
_SHELL_MEANINGS = {
    "rollback": "Restore a good state inside your loop when the training diverges, and continue with smaller steps."
}
"""Meanings of settings whose docstring is about Python values."""


class _CommandWithSections(click.Command):
    """A command whose help lists the settings of a recording in sections."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        records = {parameter.name: parameter.get_help_record(context) for parameter in self.get_params(context)}
        own = [name for name in records if name not in _SETTINGS]
        for title, names in {"Options": own, **_SECTIONS}.items():
            with formatter.section(title):
                formatter.write_dl([record for name in names if (record := records[name]) is not None])


def _setting_options(command: _F) -> _F:
    """Add an option for each setting; one that was not typed is None."""
    meanings = {**argument_meanings("autolog"), **field_meanings("Options"), **field_meanings("RollbackPolicy")}
    for setting in reversed(_SETTINGS.values()):
        name = f"--{setting.name.replace('_', '-')}"
        first_sentence = _CODE.sub(r"\1", meanings[setting.name]).partition(". ")[0].rstrip(".") + "."
        meaning = _SHELL_MEANINGS.get(setting.name, first_sentence)
        if setting.name == "rollback" or (setting.default is False and setting.metadata["takes"].words == _FLAG_WORDS):
            command = click.option(name, is_flag=True, default=None, help=meaning)(command)
        elif _may_be_repeated(setting):
            metavar = "NAME=TEXT" if setting.name == "extra_tags" else "TEXT"
            command = click.option(name, multiple=True, metavar=metavar, help=f"{meaning} May be repeated.")(command)
        else:
            command = click.option(name, metavar="VALUE", help=meaning)(command)
    return command


def _may_be_repeated(setting: Field[Any]) -> bool:
    is_collection = isinstance(setting.default, tuple) or setting.default_factory is not MISSING
    return is_collection or setting.name == "detectors"


@click.command("run", cls=_CommandWithSections, context_settings={"allow_interspersed_args": False})
@click.option("-m", "--module", "is_module", is_flag=True, help="SCRIPT is the name of a module, as in python -m.")
@_setting_options
@click.argument("script", metavar="SCRIPT")
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def command(is_module: bool, script: str, arguments: tuple[str, ...], **typed: Any) -> Script:
    """Run a training script with autolog(), without changing it.

    SCRIPT is a file, or with -m a module; what follows it are its own arguments. Options before it are those of
    autolog(), its Options and its RollbackPolicy. With torchrun: torchrun --no-python mlflow-stability run train.py.

    The exit code is that of the script. Processes that it starts by multiprocessing, such as those of
    torch.multiprocessing.spawn, are recorded too. In other processes that it starts, call autolog().
    """
    return Script(script, arguments, autolog_arguments(typed), is_module)


def autolog_arguments(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `autolog()` for options that were typed; `SettingsError` for an invalid value."""
    arguments = {name: _value(_SETTINGS[name], value) for name, value in typed.items() if value not in (None, ())}
    options, policy = (
        {name: arguments.pop(name) for name in [*arguments] if name in group} for group in (_OPTIONS, _POLICY)
    )
    if policy and not arguments.get("rollback"):
        raise SettingsError(f"--{next(iter(policy)).replace('_', '-')} is about rollbacks: give --rollback, too.")
    Settings(**arguments)
    if policy:
        preset = arguments.get("preset")
        arguments["rollback"] = RollbackPolicy.preset(preset, **policy) if preset else RollbackPolicy(**policy)
    return {**arguments, "options": Options(**options)} if options else arguments


def _value(setting: Field[Any], typed: Any) -> Any:
    if setting.name == "extra_tags":
        pairs = [pair.partition("=") for pair in typed]
        if not all(sign for _, sign, _ in pairs):
            raise SettingsError(f"--extra-tags must be NAME=TEXT; got {' '.join(typed)!r}.")
        return {name: text for name, _, text in pairs}
    return value_of_text(typed) if isinstance(typed, str) else typed
