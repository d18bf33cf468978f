"""`check`: find what is wrong with a model now, without training it."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from rich.table import Table
from rich.text import Text

import mlflow_stability
from mlflow_stability.cli.main import FOUND
from mlflow_stability.cli.output import present, put_out
from mlflow_stability.errors import TORCH_IS_MISSING, SettingsError, StabilityError
from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.formats.json import json_value
from mlflow_stability.reports.terminal_kit import TerminalWriter
from mlflow_stability.vocabulary.result import ModelCheck, Severity
from mlflow_stability.vocabulary.text.phrases import number_text

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


def show_model_check(out: TerminalWriter, check: ModelCheck) -> None:
    """Write it to a terminal; with `verbose`, a line for each parameter too."""
    style = out.style(check.severity) if check.findings else "bold green"
    out.console.print(out.text(check.verdict, style))
    out.section("Model", ((out.text(label), out.text(fact)) for label, fact in _facts(check)))
    for finding in check.findings:
        out.console.print()
        name = out.text(finding.check, "bold")
        out.console.print(Text.assemble(out.text(finding.severity.name, out.style(finding.severity)), " ", name))
        rows = Table.grid(padding=(0, 1), pad_edge=False)
        rows.add_column(width=1)
        rows.add_column(overflow="fold")
        rows.add_row("", out.text(finding.message))
        for remedy in finding.remedies:
            rows.add_row(out.text("→" if out.unicode else ">", "cyan"), out.text(str(remedy)))
        out.console.print(rows)
    out.section("Not checked", ((out.text("-"), out.text(reason)) for reason in check.not_checked))
    if out.verbose:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("parameter", overflow="fold")
        for title in ("shape", "rms", "largest", "gradient norm"):
            table.add_column(title, justify="right")
        for layer in check.layers:
            shape = "x".join(map(str, layer.shape)) or "1"
            norm = "-" if layer.grad_norm is None else number_text(layer.grad_norm)
            row = (layer.name, shape, number_text(layer.rms), number_text(layer.largest), norm)
            table.add_row(*(out.text(plain(cell)) for cell in row), style="red" if layer.nonfinite else "")
        out.console.print()
        out.console.print(table)


def as_json(check: ModelCheck) -> str:
    """Return it as JSON; NaN and infinity are texts."""
    findings = [
        asdict(finding) | {"remedies": [remedy.as_json() for remedy in finding.remedies]} for finding in check.findings
    ]
    document = asdict(check) | {"findings": findings, "verdict": check.verdict}
    return json.dumps(json_value(document), indent=1) + "\n"


def _facts(check: ModelCheck) -> Iterator[tuple[str, str]]:
    yield "parameters", f"{check.parameters:,}, of which {check.trainable:,} are trainable"
    if check.loss is not None:
        chance = "" if check.chance is None else f"; guessing has {number_text(check.chance)}"
        yield "loss of the batch", f"{number_text(check.loss)}{chance}"
    if check.grad_norm is not None:
        yield "gradient norm", number_text(check.grad_norm)
    if check.gradient_flow is not None:
        yield "gradient flow", f"{check.gradient_flow:.0%} of the parameters in a healthy band"
