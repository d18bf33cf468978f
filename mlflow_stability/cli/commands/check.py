"""`check`: find what is wrong with a model now, without training it."""

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
from mlflow_stability.cli.main import FOUND
from mlflow_stability.cli.output import present, put_out
from mlflow_stability.errors import TORCH_IS_MISSING, SettingsError, StabilityError
from mlflow_stability.reports.model_check import as_json, show_model_check
from mlflow_stability.vocabulary.result import Severity

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
    result = mlflow_stability.check(**_check_arguments(target))
    if output_format == "json":
        put_out(as_json(result))
    else:
        present(lambda out: show_model_check(out, result), verbose=verbose)
    return FOUND if result.severity >= Severity.WARNING else 0


def _check_arguments(target: str) -> Mapping[str, Any]:
    """Return the arguments of `check()` that the factory gives."""
    name, colon, attribute = target.rpartition(":")
    if not colon or not name or not attribute:
        raise SettingsError(f"Say MODULE:FACTORY, such as train:make_model or train.py:make_model; got {target!r}.")
    result: Any = _module(name)
    for part in attribute.split("."):
        if not hasattr(result, part):
            raise SettingsError(f"{name} has no {attribute}.")
        result = getattr(result, part)
    if (callable(result) and not hasattr(result, "state_dict")) or isinstance(result, type):
        result = result()
    if isinstance(result, Mapping):
        if "model" not in result or not set(result) <= set(ARGUMENTS):
            raise SettingsError(
                f"{target} must give a dict of {', '.join(ARGUMENTS)}; got {', '.join(map(str, result))}."
            )
        return result
    if isinstance(result, tuple):
        if not 1 <= len(result) <= 2:
            raise SettingsError(f"{target} must give the model, or the model and a batch; got {len(result)} values.")
        return dict(zip(ARGUMENTS, result, strict=False))
    return {"model": result}


def _module(name: str) -> ModuleType:
    """Load a file, or a module by its name, found from the current directory."""
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
