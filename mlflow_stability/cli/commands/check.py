"""`check`: says what is wrong with a model now, without training it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import click

import mlflow_stability
from mlflow_stability.cli.kit.output import present, put_out
from mlflow_stability.errors import TORCH_IS_MISSING, SettingsError, StabilityError
from mlflow_stability.reports.model_check import as_json, show_model_check
from mlflow_stability.vocabulary.result import ModelCheck, Severity

ARGUMENTS = ("model", "batch", "loss", "optimizer")


@click.command("check")
@click.argument("target", metavar="MODULE:FACTORY")
@click.option("--output-format", type=click.Choice(["rich", "json"]), default="rich", show_default=True)
@click.option("-v", "--verbose", is_flag=True, help="Show every parameter.")
def command(target: str, output_format: str, verbose: bool) -> int:
    """Check a model as it is now: values, settings, gradients of one batch.

    MODULE is a module or a file (train.py:make_model). FACTORY is a function without arguments, or a model. It gives
    the model, the model and a batch, or a dict with the arguments of mlflow_stability.check(): model, batch, loss,
    optimizer.

    The exit code is 1 where something is a WARNING or worse.
    """
    if find_spec("torch") is None:
        raise StabilityError(f"check {TORCH_IS_MISSING}")
    checked = mlflow_stability.check(**_given(target))
    if output_format == "json":
        put_out(as_json(checked))
    else:
        present(lambda out: show_model_check(out, checked), verbose=verbose)
    return exit_code(checked)


def exit_code(checked: ModelCheck) -> int:
    """1 where something is wrong."""
    return int(checked.severity >= Severity.WARNING)


def _given(target: str) -> Mapping[str, Any]:
    """The arguments of `check`, as the factory gives them."""
    name, colon, attribute = target.rpartition(":")
    if not colon or not name or not attribute:
        raise SettingsError(f"Say MODULE:FACTORY, such as train:make_model or train.py:make_model; got {target!r}.")
    made: Any = _module(name)
    for part in attribute.split("."):
        if not hasattr(made, part):
            raise SettingsError(f"{name} has no {attribute}.")
        made = getattr(made, part)
    if (callable(made) and not hasattr(made, "state_dict")) or isinstance(made, type):
        made = made()
    if isinstance(made, Mapping):
        strange = [each for each in made if each not in ARGUMENTS]
        if strange or "model" not in made:
            raise SettingsError(
                f"{target} must give a dict of {', '.join(ARGUMENTS)}; got {', '.join(map(str, made))}."
            )
        return made
    if isinstance(made, tuple):
        if not 1 <= len(made) <= 2:
            raise SettingsError(f"{target} must give the model, or the model and a batch; got {len(made)} values.")
        return dict(zip(ARGUMENTS, made, strict=False))
    return {"model": made}


def _module(name: str) -> ModuleType:
    """A module by its name, found from here, or a file."""
    path = Path(name)
    if path.suffix == ".py":
        if not path.is_file():
            raise SettingsError(f"No such file: {name}.")
        sys.path.insert(0, str(path.resolve().parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise SettingsError(f"No module named {error.name!r} is found from {Path.cwd()}.") from None
        raise
