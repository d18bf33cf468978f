"""`run`: run a training script with `autolog()`, without a line changed in it.

The arguments of `autolog()`, and the fields of `Options` and `RollbackPolicy`, are options of the command, but for
objects that only a script has. Torch is not loaded here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

import click

from mlflow_stability.cli.script import Script
from mlflow_stability.errors import SettingsError
from mlflow_stability.manual.python_api import argument_meanings, field_meanings
from mlflow_stability.vocabulary.argument import boolean
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy
from mlflow_stability.vocabulary.settings import Options, Settings, value_of_text

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
        """Write its own options, then those of each section."""
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
