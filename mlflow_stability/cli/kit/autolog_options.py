"""The arguments of `autolog()`, and the fields of `Options` and `RollbackPolicy`, as options of a command.

Guarantees: each has an option without a line here, but for objects that only a script has; torch is not loaded; what it
does not take is refused in the words of `autolog()`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

import click

from mlflow_stability.errors import SettingsError
from mlflow_stability.manual.python_api import argument_meanings, field_meanings
from mlflow_stability.vocabulary.argument import boolean
from mlflow_stability.vocabulary.rollback_policy import RollbackPolicy
from mlflow_stability.vocabulary.settings import Options, Settings, value_of_text

_F = TypeVar("_F", bound=Callable[..., Any])
_OF_OPTIONS = {setting.name: setting for setting in fields(Options)}
# `extra_state` has objects of the script.
_OF_POLICY = {setting.name: setting for setting in fields(RollbackPolicy) if setting.name != "extra_state"}
_OF_AUTOLOG = {setting.name: setting for setting in fields(Settings) if setting.name not in _OF_OPTIONS}
_ALL = {**_OF_AUTOLOG, **_OF_OPTIONS, **_OF_POLICY}
SECTIONS: Mapping[str, Mapping[str, Field[Any]]] = {
    "Arguments of autolog()": _OF_AUTOLOG,
    "Fields of Options": _OF_OPTIONS,
    "Fields of RollbackPolicy, with --rollback": _OF_POLICY,
}
_CODE = re.compile(r"`([^`]*)`")


class CommandWithSections(click.Command):
    """A command whose help lists the options of a recording in sections."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write its own options, then those of each section."""
        records = {parameter.name: parameter.get_help_record(context) for parameter in self.get_params(context)}
        own = [name for name in records if name not in _ALL]
        for title, names in {"Options": own, **SECTIONS}.items():
            with formatter.section(title):
                formatter.write_dl([record for name in names if (record := records[name]) is not None])


def autolog_options(command: _F) -> _F:
    """An option for each setting; their values come as keyword arguments of the command, those not typed as None."""
    meanings = {**argument_meanings("autolog"), **field_meanings("Options"), **field_meanings("RollbackPolicy")}
    for setting in reversed(_ALL.values()):
        name = f"--{setting.name.replace('_', '-')}"
        meaning = _CODE.sub(r"\1", meanings[setting.name]).partition(". ")[0].rstrip(".") + "."
        if setting.name == "rollback" or (setting.default is False and setting.metadata["takes"].words == _FLAG):
            command = click.option(name, is_flag=True, default=None, help=meaning)(command)
        elif _takes_several(setting):
            metavar = "NAME=TEXT" if setting.name == "extra_tags" else "TEXT"
            command = click.option(name, multiple=True, metavar=metavar, help=f"{meaning} May be repeated.")(command)
        else:
            command = click.option(name, metavar="VALUE", help=meaning)(command)
    return command


def settings_typed(typed: Mapping[str, Any]) -> dict[str, Any]:
    """What was typed as arguments of `autolog()`; ``SettingsError`` for what a setting does not take."""
    given = {name: _value(_ALL[name], value) for name, value in typed.items() if value not in (None, ())}
    options, policy = ({name: given.pop(name) for name in [*given] if name in of} for of in (_OF_OPTIONS, _OF_POLICY))
    if policy and not given.get("rollback"):
        raise SettingsError(f"--{next(iter(policy)).replace('_', '-')} is about rollbacks: give --rollback, too.")
    Settings(**given)
    if policy:
        preset = given.get("preset")
        given["rollback"] = RollbackPolicy.preset(preset, **policy) if preset else RollbackPolicy(**policy)
    return {**given, "options": Options(**options)} if options else given


def _value(setting: Field[Any], typed: Any) -> Any:
    if setting.name == "extra_tags":
        pairs = [pair.partition("=") for pair in typed]
        if not all(sign for _, sign, _ in pairs):
            raise SettingsError(f"--extra-tags must be NAME=TEXT; got {' '.join(typed)!r}.")
        return {name: text for name, _, text in pairs}
    return value_of_text(typed) if isinstance(typed, str) else typed


def _takes_several(setting: Field[Any]) -> bool:
    several = isinstance(setting.default, tuple) or setting.default_factory is not MISSING
    return several or setting.name == "detectors"


_FLAG = boolean()["takes"].words
