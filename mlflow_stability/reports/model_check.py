"""Show the result of `mlflow_stability.check`: as text for a terminal, or as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.formats.json import json_value
from mlflow_stability.reports.terminal_kit import TerminalWriter
from mlflow_stability.vocabulary.result import ModelCheck, ModelFinding
from mlflow_stability.vocabulary.text import number_text


def show_model_check(out: TerminalWriter, check: ModelCheck) -> None:
    """Write it to a terminal; with `verbose`, a line for each parameter too."""
    style = out.style(check.severity) if check.findings else "bold green"
    out.console.print(out.text(check.verdict, style))
    out.section("Model", ((out.text(label), out.text(fact)) for label, fact in _facts(check)))
    for finding in check.findings:
        _show_finding(out, finding)
    out.section("Not checked", ((out.text("-"), out.text(reason)) for reason in check.not_checked))
    if out.verbose:
        _show_parameters(out, check)


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


def _show_finding(out: TerminalWriter, finding: ModelFinding) -> None:
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


def _show_parameters(out: TerminalWriter, check: ModelCheck) -> None:
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
