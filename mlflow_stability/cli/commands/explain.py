"""`explain`, `thresholds` and `presets`: what findings and causes mean, and the numbers that they depend on."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mlflow_stability.cli.finding_types import (
    RULES_BESIDE,
    RULES_ON_REQUEST,
    checked_kind_if_any,
    checked_rule_if_any,
    complete_explained,
    complete_kinds,
)
from mlflow_stability.cli.output import present
from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.diagnosis.causes.catalog import causes
from mlflow_stability.kinds.catalog import DETECTORS, KINDS, ON_REQUEST, RULES, documentation, name_of
from mlflow_stability.kinds.documentation import FindingDocumentation, Threshold, documentation_of
from mlflow_stability.manual.pages import (
    COLUMNS,
    PRECEDENCE,
    WITH_ROLLBACK,
    WITHOUT_ROLLBACK,
    preset_rows,
    rule_paragraph,
)
from mlflow_stability.reports.terminal_kit import TerminalWriter
from mlflow_stability.vocabulary.discovery import note_of
from mlflow_stability.vocabulary.presets import PRESETS

FOLDERS = ("curves", "detectors", "diagnosis", "kinds", "recovery")
CONFIGS = ("Limits", "Lookback")  # ends of the names of classes whose fields are such numbers
_PACKAGE = Path(__file__).parents[2]
_OPERATORS = {
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: lambda a, b: a**b,
    ast.LShift: lambda a, b: a << b,
}


def rule_constants() -> Iterator[tuple[str, list[Threshold]]]:
    """Yield each file that has any, and its constants."""
    for folder in FOLDERS:
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            constants = list(_constants(ast.parse(text).body, text.splitlines()))
            if constants:
                yield path.relative_to(_PACKAGE).as_posix(), constants


def _constants(body: list[ast.stmt], lines: list[str]) -> Iterator[Threshold]:
    for place, statement in enumerate(body):
        if isinstance(statement, ast.ClassDef) and statement.name.endswith(CONFIGS):
            yield from _fields(statement.body, lines)
        if not isinstance(statement, ast.Assign):
            continue
        names = [target.id for target in _parts(statement.targets[0]) if isinstance(target, ast.Name)]
        values = [_number(value) for value in _parts(statement.value)]
        if len(names) != len(values) or not all(name.isupper() and name[0] != "_" for name in names):
            continue
        meaning = _meaning(body[place:], lines)
        for name, value in zip(names, values, strict=True):
            if value is not None:
                yield Threshold(name, value, meaning)


def _fields(body: list[ast.stmt], lines: list[str]) -> Iterator[Threshold]:
    for place, statement in enumerate(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            value = _number(statement.value)
            if value is not None:
                yield Threshold(statement.target.id, value, _meaning(body[place:], lines))


def _parts(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _meaning(statements: list[ast.stmt], lines: list[str]) -> str:
    """Return the note on the first of these constants; those in a row share that of the last."""
    for place, (node, below) in enumerate(pairwise([*statements, ast.Pass()])):
        if place and not isinstance(node, ast.Assign):
            return ""
        if note := note_of(node, below, lines):
            return note
    return ""


def _number(node: ast.expr) -> float | None:
    """Return the value of a number, or of a product, quotient or power of numbers."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _number(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _number(node.left), _number(node.right)
        compute: Any = _OPERATORS[type(node.op)]
        return None if left is None or right is None else float(compute(left, right))
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return node.value
    return None


Rows = Iterator[tuple[Text, Text]]


@click.command("explain")
@click.argument("kind", required=False, callback=checked_rule_if_any, shell_complete=complete_explained)
def command(kind: str | None) -> None:
    """Explain a finding or a cause: what it means, what to do, when it is wrong.

    KIND is the name of a finding or a cause: loss_spike, divergence:start, bad_batch. Without it, all are listed.
    """
    present(_list_all if kind is None else lambda out: _explain(out, kind))


def _list_all(out: TerminalWriter) -> None:
    usual = [kind for kind in KINDS if kind not in RULES_ON_REQUEST]
    out.section("Findings", _listed(out, usual), space=False)
    out.section("Rules for whole curves", _listed(out, RULES_BESIDE))
    out.section("Rules on request (--issue-type)", _listed(out, RULES_ON_REQUEST))
    only_causes = [cause for cause in causes().values() if cause.name not in KINDS]
    out.section("Causes", ((out.text(cause.name), out.text(cause.meaning)) for cause in only_causes))
    out.paragraph("Findings that are also causes", ", ".join(name for name in causes() if name in KINDS), names=True)
    out.paragraph("More", "`mlflow-stability explain KIND` shows everything about one.")


def _listed(out: TerminalWriter, names: Iterable[str]) -> Rows:
    for about in map(documentation, names):
        mark = " (experimental)" if about.experimental else ""
        yield out.text(about.name, out.style(about.severities[-1])), out.text(f"{about.sentence}{mark}")


def _explain(out: TerminalWriter, name: str) -> None:
    """Explain a finding or a rule, a cause, or both of one name."""
    cause = causes().get(name)
    if cause is None or name in KINDS:
        _explain_finding(out, documentation(name))
    if cause is not None:
        if name not in KINDS:
            out.console.print(Text.assemble(out.text(cause.name, "bold"), ": ", out.text(cause.meaning)))
        else:
            out.paragraph("As a cause", cause.meaning)
        out.paragraph("Evidence", cause.evidence)
        out.paragraph("What to do", " ".join(map(str, cause.remedies)))
        out.paragraph("When it is wrong", cause.wrong)


def _explain_finding(out: TerminalWriter, about: FindingDocumentation) -> None:
    out.console.print(Text.assemble(out.text(about.name, "bold"), ": ", out.text(about.sentence)))
    severity = " or ".join(level.name for level in about.severities)
    unproven = "; experimental: it changes no verdict and no exit code" if about.experimental else ""
    out.paragraph("Severity", severity + unproven)
    out.paragraph("Signals", ", ".join(about.quantities), names=True)
    out.paragraph("What it sees", about.sees)
    out.paragraph("Why it matters", about.why)
    out.paragraph("What to do", about.try_)
    out.paragraph("When it is wrong", about.wrong)
    out.section("Thresholds", _threshold_rows(out, about.thresholds), first_at_most=0.45)
    out.paragraph("Thresholds of your own", about.own_thresholds)
    if not about.rule:
        for rule in RULES:
            if rule.kind == about.kind:
                out.paragraph("What it sees in whole curves, afterwards", rule_paragraph(rule, "What it sees"))
                out.paragraph("When that is wrong", rule_paragraph(rule, "When it is wrong"))
        rules = [rule for rule in (*RULES_BESIDE, *RULES_ON_REQUEST) if rule.startswith(f"{about.kind}:")]
        out.section("Other rules", ((out.text(rule), out.text(documentation(rule).sentence)) for rule in rules))
    show_reference = out.paragraph if " " in about.reference else out.link
    show_reference("Reference", about.reference)


def _threshold_rows(out: TerminalWriter, thresholds: Iterable[Threshold]) -> Rows:
    for threshold in thresholds:
        value = Text.assemble(out.text(threshold.name), " = ", out.text(threshold.text, "cyan"))
        yield value, out.text(threshold.meaning)


@click.command("thresholds")
@click.argument("kind", required=False, callback=checked_kind_if_any, shell_complete=complete_kinds)
def thresholds(kind: str | None) -> None:
    """Print every threshold with its default and its meaning.

    KIND is the type of a finding, such as loss_spike; without it, the thresholds of all types are printed, and the
    numbers by which curves are read, causes are identified and rollbacks are decided. Detectors judge step by step;
    rules judge whole curves afterwards.
    """
    present(lambda out: _show_thresholds(out, kind))


def _show_thresholds(out: TerminalWriter, kind: str | None) -> None:
    judges = [(title, documentation_of(judge).thresholds) for title, judge in _judges() if kind in (None, judge.kind)]
    shown = 0
    for title, numbers in [*judges, *(rule_constants() if kind is None else ())]:
        out.section(title, _threshold_rows(out, numbers), space=shown > 0, first_at_most=0.45)
        shown += bool(numbers)
    if not shown:
        out.paragraph("No thresholds", "This finding is reported as it happens, and decided by no number.")


def _judges() -> Iterator[tuple[str, type[FindingType]]]:
    """Yield the detectors of each kind, and after them its rules for whole curves."""
    detectors = (*DETECTORS, *ON_REQUEST)
    for kind in dict.fromkeys(judge.kind for judge in (*detectors, *RULES)):
        yield from ((name_of(detector), detector) for detector in detectors if detector.kind == kind)
        yield from ((f"{kind}, in whole curves ({rule.__name__})", rule) for rule in RULES if rule.kind == kind)


@click.command("presets")
def presets() -> None:
    """Print what each preset sets, beside the defaults.

    autolog(preset=NAME) gives these instead of the defaults, with or without rollback.
    """
    present(_show_presets)


def _show_presets(out: TerminalWriter) -> None:
    out.section("Presets", ((out.text(preset.name, "cyan"), out.text(preset.meaning)) for preset in PRESETS.values()))
    for group in (WITHOUT_ROLLBACK, WITH_ROLLBACK):
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for title in ("", *COLUMNS):
            table.add_column(title, no_wrap=True)
        for group_of_row, name, (default, *values) in preset_rows():
            if group_of_row == group:
                cells = (out.text(value, "" if value == default else "cyan") for value in values)
                table.add_row(out.text(name), out.text(default), *cells)
        out.console.print()
        out.console.print(out.text(group, "bold"))
        out.console.print(Padding(table, (0, 0, 0, 2)))
    out.paragraph("Precedence", PRECEDENCE)
