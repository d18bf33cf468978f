"""`explain`: says what a judgement or a cause means, what is seen of it, what to try, and when it is wrong."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click
from rich.text import Text

from mlflow_stability.cli.kit.finding_types import (
    RULES_BESIDE,
    RULES_ON_REQUEST,
    checked_rule_if_any,
    complete_explained,
)
from mlflow_stability.cli.kit.output import present
from mlflow_stability.diagnosis.causes.catalog import CauseDocumentation, causes
from mlflow_stability.kinds.catalog import KINDS, RULES, documentation
from mlflow_stability.kinds.documentation import FindingDocumentation
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.reports.terminal_kit import TerminalWriter

Rows = Iterator[tuple[Text, Text]]
EXPLAINED_CAUSES_ALONE = frozenset(causes()) - frozenset(KINDS)
"""Causes that are no kinds of findings as well."""


@click.command("explain")
@click.argument("kind", required=False, callback=checked_rule_if_any, shell_complete=complete_explained)
def command(kind: str | None) -> None:
    """Explain a finding or a cause: what it means, what to do, when it is wrong.

    KIND is the name of a finding or a cause: loss_spike, divergence:start, bad_batch. Without it, all are listed.
    """
    present(_list_all if kind is None else lambda out: _explain_name(out, kind))


def _list_all(out: TerminalWriter) -> None:
    usual = [documentation(each) for each in KINDS if each not in RULES_ON_REQUEST]
    out.section("Findings", _listed(out, usual), space=False)
    out.section("Rules for whole curves", _listed(out, [documentation(each) for each in RULES_BESIDE]))
    out.section("Rules on request (--issue-type)", _listed(out, [documentation(each) for each in RULES_ON_REQUEST]))
    alone = [each for each in causes().values() if each.name not in KINDS]
    out.section("Causes", ((out.text(each.name), out.text(each.meaning)) for each in alone))
    also = [each.name for each in causes().values() if each.name in KINDS]
    out.paragraph("Findings that are also causes", ", ".join(also))
    out.paragraph("More", "`mlflow-stability explain KIND` shows everything about one.")


def _listed(out: TerminalWriter, found: list[FindingDocumentation]) -> Rows:
    for each in found:
        mark = "" if not each.experimental else " (experimental)"
        yield out.text(each.name, out.style(each.severities[-1])), out.text(f"{each.sentence}{mark}")


def _explain_name(out: TerminalWriter, name: str) -> None:
    """A kind or a rule, a cause, or both of one name."""
    cause = causes().get(name)
    if name not in EXPLAINED_CAUSES_ALONE:
        _explain(out, documentation(name))
    if cause is not None:
        _explain_cause(out, cause, heading=name in EXPLAINED_CAUSES_ALONE)


def _explain_cause(out: TerminalWriter, cause: CauseDocumentation, *, heading: bool) -> None:
    if heading:
        out.console.print(Text.assemble(out.text(cause.name, "bold"), ": ", out.text(cause.meaning)))
    else:
        out.paragraph("As a cause", cause.meaning)
    out.paragraph("Evidence", cause.evidence)
    out.paragraph("What to do", " ".join(map(str, cause.remedies)))
    out.paragraph("When it is wrong", cause.wrong)


def _explain(out: TerminalWriter, about: FindingDocumentation) -> None:
    out.console.print(Text.assemble(out.text(about.name, "bold"), ": ", out.text(about.sentence)))
    out.paragraph("Severity", _severity(about))
    out.paragraph("Signals", ", ".join(about.quantities), names=True)
    out.paragraph("What it sees", about.sees)
    out.paragraph("Why it matters", about.why)
    out.paragraph("What to do", about.try_)
    out.paragraph("When it is wrong", about.wrong)
    out.section("Thresholds", _thresholds(out, about), first_at_most=0.45)
    out.paragraph("Thresholds of your own", about.own_thresholds)
    if not about.rule:
        for rule in RULES:
            if rule.kind == about.kind:
                out.paragraph("What it sees in whole curves, afterwards", _said_by(rule, "What it sees"))
                out.paragraph("When that is wrong", _said_by(rule, "When it is wrong"))
        rules = [each for each in (*RULES_BESIDE, *RULES_ON_REQUEST) if each.startswith(f"{about.kind}:")]
        others = [documentation(each) for each in rules]
        out.section("Other rules", ((out.text(each.name), out.text(each.sentence)) for each in others))
    show_reference = out.paragraph if " " in about.reference else out.link
    show_reference("Reference", about.reference)


def _severity(about: FindingDocumentation) -> str:
    named = " or ".join(each.name for each in about.severities)
    return f"{named}; experimental: it changes no verdict and no exit code" if about.experimental else named


def _thresholds(out: TerminalWriter, about: FindingDocumentation) -> Rows:
    for each in about.thresholds:
        yield Text.assemble(out.text(each.name), " = ", out.text(each.text, "cyan")), out.text(each.meaning)


def _said_by(rule: type[Rule], title: str) -> str:
    """One paragraph of a rule's own description."""
    paragraphs = (" ".join(each.split()) for each in (inspect.getdoc(rule) or "").split("\n\n"))
    return next((each.removeprefix(f"{title}: ") for each in paragraphs if each.startswith(f"{title}: ")), "")
