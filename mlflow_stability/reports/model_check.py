"""Shows the result of `mlflow_stability.check`: as text for a terminal, or as JSON for programs.

In: a `ModelCheck`. Out: verdict, findings with what to do, the loss against chance, what was not checked; with
`verbose`, a line for each parameter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.terminal_kit import TerminalWriter, number_text
from mlflow_stability.vocabulary.result import ModelCheck, ModelFinding, Severity

Rows = Iterator[tuple[Text, Text]]


def show_model_check(out: TerminalWriter, check: ModelCheck) -> None:
    """Write it to a terminal."""
    style = out.style(check.severity) if check.findings else "bold green"
    out.console.print(out.text(check.verdict, style))
    out.section("Model", _facts(out, check))
    for each in check.findings:
        _show_finding(out, each)
    out.section("Not checked", ((out.text("-"), out.text(each)) for each in check.not_checked))
    if out.verbose:
        _show_layers(out, check)


def as_json(check: ModelCheck) -> str:
    """The same as JSON; NaN and infinity are texts."""
    findings = [
        asdict(found) | {"remedies": [remedy.as_json() for remedy in found.remedies]} for found in check.findings
    ]
    said = asdict(check) | {"findings": findings, "verdict": check.verdict}
    return json.dumps(_plain_values(said), indent=1) + "\n"


def _facts(out: TerminalWriter, check: ModelCheck) -> Rows:
    yield out.text("parameters"), out.text(f"{check.parameters:,}, of which {check.trainable:,} are trainable")
    if check.loss is not None:
        chance = "" if check.chance is None else f"; guessing has {number_text(check.chance)}"
        yield out.text("loss of the batch"), out.text(f"{number_text(check.loss)}{chance}")
    if check.grad_norm is not None:
        yield out.text("gradient norm"), out.text(number_text(check.grad_norm))
    if check.gradient_flow is not None:
        yield out.text("gradient flow"), out.text(f"{check.gradient_flow:.0%} of the parameters in a healthy band")


def _show_finding(out: TerminalWriter, found: ModelFinding) -> None:
    out.console.print()
    name = out.text(found.check, "bold")
    out.console.print(Text.assemble(out.text(found.severity.name, out.style(found.severity)), " ", name))
    rows = Table.grid(padding=(0, 1), pad_edge=False)
    rows.add_column(width=1)
    rows.add_column(overflow="fold")
    rows.add_row("", out.text(found.message))
    for each in found.remedies:
        rows.add_row(out.text("→" if out.unicode else ">", "cyan"), out.text(str(each)))
    out.console.print(rows)


def _show_layers(out: TerminalWriter, check: ModelCheck) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("parameter", overflow="fold")
    for title in ("shape", "rms", "largest", "gradient norm"):
        table.add_column(title, justify="right")
    for each in check.layers:
        shape = "x".join(map(str, each.shape)) or "1"
        norm = "-" if each.grad_norm is None else number_text(each.grad_norm)
        row = (each.name, shape, number_text(each.rms), number_text(each.largest), norm)
        table.add_row(*(out.text(plain(cell)) for cell in row), style="red" if each.nonfinite else "")
    out.console.print()
    out.console.print(table)


def _plain_values(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain_values(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_values(each) for each in value]
    if isinstance(value, Severity):
        return value.name
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
