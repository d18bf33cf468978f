"""`doctor`: says whether recording would work here, and what to do where it would not."""

from __future__ import annotations

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mlflow_stability.cli.checks import Finding, check_everything, worst
from mlflow_stability.cli.options import tracking_uri_option
from mlflow_stability.cli.terminal import notes_console, result_console
from mlflow_stability.vocabulary.event import Severity

EXIT_CODES = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}
_MARKS = {
    Severity.INFO: ("ok", "green"),
    Severity.WARNING: ("look", "yellow"),
    Severity.CRITICAL: ("broken", "bold red"),
}
_ENDINGS = {
    Severity.INFO: "Everything is in place.",
    Severity.WARNING: "It works; see the lines marked 'look'.",
    Severity.CRITICAL: "Something will not work; see the lines marked 'broken'.",
}


@click.command("doctor")
@tracking_uri_option
def command(tracking_uri: str | None) -> int:
    """Check the installation, the tracking store and the journals.

    Takes a few seconds, for torch and MLflow are loaded; the store has five to answer. Nothing is changed.

    Exit code 0: all is well. 1: something is worth a look, such as a journal that was left behind. 2: something will
    not work, such as a store that does not answer.
    """
    notes = notes_console()
    out = result_console()
    with notes.status("Looking ..."):
        findings = list(check_everything(tracking_uri))
    show(out, findings)
    return EXIT_CODES[worst(findings)]


def show(out: Console, findings: list[Finding]) -> None:
    """The findings as a table, what to do beneath each."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for each in findings:
        mark, style = _MARKS[each.severity]
        said = Text(each.said)
        if each.advice:
            said.append(f"\n-> {each.advice}", "bold")
        table.add_row(Text(mark, style), each.subject, said)
    out.print(table)
    out.print(Padding(_ENDINGS[worst(findings)], (1, 0, 0, 0)))
