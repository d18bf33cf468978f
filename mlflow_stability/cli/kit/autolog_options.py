"""The settings of `autolog()` as options of a command: one for each, with the sentence that its docstring has.

In: what was typed. Out: checked arguments of `autolog()` by name. Guarantees: a setting that is added has an option
without a line here, but for objects that only a script has; torch is not loaded;
what a setting does not take is refused in the words of `autolog()`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

import click

from mlflow_stability.errors import SettingsError
from mlflow_stability.manual.python_api import argument_meanings
from mlflow_stability.vocabulary.argument import yes_or_no
from mlflow_stability.vocabulary.settings import Settings

_F = TypeVar("_F", bound=Callable[..., Any])
_FLAGS = (yes_or_no()["takes"].words, "")  # the second: `rollback`, whose policies only Python can build
_WORDS = {"true": True, "false": False, "none": None}
_OF_PYTHON_ALONE = ("extra_state",)
"""Settings whose values only a script has."""
_CODE = re.compile(r"`([^`]*)`")


def autolog_options(command: _F) -> _F:
    """An option for each setting; their values come as keyword arguments of the command, those not typed as None."""
    meanings = argument_meanings("autolog")
    for each in reversed(fields(Settings)):
        if each.name in _OF_PYTHON_ALONE:
            continue
        name = f"--{each.name.replace('_', '-')}"
        meaning = _CODE.sub(r"\1", meanings.get(each.name, "")).partition(". ")[0].rstrip(".") + "."
        if each.default is False and each.metadata["takes"].words in _FLAGS:
            command = click.option(name, is_flag=True, default=None, help=meaning)(command)
        elif _takes_several(each):
            metavar = "NAME=TEXT" if each.name == "extra_tags" else "TEXT"
            command = click.option(name, multiple=True, metavar=metavar, help=f"{meaning} May be repeated.")(command)
        else:
            command = click.option(name, metavar="VALUE", help=meaning)(command)
    return command


def settings_typed(typed: Mapping[str, Any]) -> dict[str, Any]:
    """What was typed as arguments of `autolog()`; ``SettingsError`` for what a setting does not take."""
    known = {each.name: each for each in fields(Settings)}
    given = {name: _value(known[name], value) for name, value in typed.items() if value not in (None, ())}
    Settings(**given)
    return given


def _value(setting: Field[Any], typed: Any) -> Any:
    if setting.name == "extra_tags":
        pairs = [each.partition("=") for each in typed]
        if not all(sign for _, sign, _ in pairs):
            raise SettingsError(f"--extra-tags must be NAME=TEXT; got {' '.join(typed)!r}.")
        return {name: text for name, _, text in pairs}
    if not isinstance(typed, str):
        return typed
    if typed.lower() in _WORDS:
        return _WORDS[typed.lower()]
    try:
        return float(typed)
    except ValueError:
        return typed


def _takes_several(setting: Field[Any]) -> bool:
    return setting.default == () or setting.default_factory is not MISSING or setting.name == "detectors"
