"""`checklist`: lists what to check when something is wrong, filled in with what a run shows."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.text import Text

from mlflow_stability.analysis.diagnose import asked_curves, history_of
from mlflow_stability.cli.kit.finding_types import checked_kind_if_any, complete_kinds
from mlflow_stability.cli.kit.options import curve_options, last_option, runs_asked_for, tracking_uri_option
from mlflow_stability.cli.kit.output import present
from mlflow_stability.cli.kit.terminal import notes_console
from mlflow_stability.diagnosis.checklist import ChecklistItem, checklist_of
from mlflow_stability.diagnosis.diagnose import diagnosis_of
from mlflow_stability.reports.terminal_kit import TerminalWriter

STYLES = {"ok": "green", "bad": "bold red", "unknown": "dim"}


@click.command("checklist")
@click.argument("kind", required=False, callback=checked_kind_if_any, shell_complete=complete_kinds)
@click.option("--run", metavar="RUN|PATH", type=click.Path(), help="A run or log to check against the list.")
@last_option
@curve_options
@tracking_uri_option
def command(
    kind: str | None, run: str | None, last: bool, loss: str | None, val_loss: str | None, tracking_uri: str | None
) -> None:
    """List what to check, with what a run shows for each item.

    KIND is the name of a finding, such as loss_spike. Default: the worst finding of the run, else a general list.
    """
    if last:
        (run,) = runs_asked_for(() if run is None else (run,), last, tracking_uri)[-1:]
    if run is None:
        items = checklist_of(kind or "")
        title = f"What to check: {kind or 'a general list'}"
    else:
        with notes_console().status("Reading ..."):
            history = history_of(run, tracking_uri, asked_curves(loss, val_loss))
            diagnosis = diagnosis_of(history)
            items = checklist_of(kind or "", history, diagnosis)
        title = f"What to check in {history.name}: {kind or diagnosis.outcome.replace('_', ' ')}"
    present(lambda out: _show(out, title, items))


def _show(out: TerminalWriter, title: str, items: Sequence[ChecklistItem]) -> None:
    rows = ((_head(out, number, each), _body(out, each)) for number, each in enumerate(items, start=1))
    out.section(title, rows, space=False)


def _head(out: TerminalWriter, number: int, item: ChecklistItem) -> Text:
    head = out.text(f"{number}.")
    return head.append(f" {item.state}", STYLES[item.state]) if item.finding else head


def _body(out: TerminalWriter, item: ChecklistItem) -> Text:
    lines = [out.text(item.question, "bold")]
    if item.finding:
        lines.append(out.text(item.finding))
    lines.append(out.text(f"manual check: {item.how}", "dim"))
    return Text("\n").join(lines)
