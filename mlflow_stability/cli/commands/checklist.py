"""`checklist`: what to check when something is wrong, with what a run shows."""

from __future__ import annotations

import re
from pathlib import Path

import click
from rich.text import Text

from mlflow_stability.analysis.diagnose import asked_curves, asked_detectors, concluded, history_of
from mlflow_stability.cli.finding_types import checked_kind, complete_kinds
from mlflow_stability.cli.options import curve_options, last_option, sensitivity_option, tracking_uri_option, typed_runs
from mlflow_stability.cli.output import notes_console, present
from mlflow_stability.diagnosis.checklist.checklist import Checklist, ChecklistItem, checklist_of
from mlflow_stability.reports.terminal_kit import TerminalWriter
from mlflow_stability.vocabulary.text.phrases import capitalised

_RUN_ID = re.compile(r"(?=.*\d)[0-9a-f]{6,32}")  # a run id or its beginning; no kind of finding has digits
STYLES = {"ok": "green", "bad": "bold red", "unknown": "dim"}


@click.command("checklist")
@click.argument("kind", required=False, shell_complete=complete_kinds)
@click.option("--run", metavar="RUN|PATH", type=click.Path(), help="A run or log to check against the list.")
@last_option
@sensitivity_option
@curve_options
@tracking_uri_option
def command(
    kind: str | None,
    run: str | None,
    last: bool,
    sensitivity: str,
    loss: str | None,
    val_loss: str | None,
    tracking_uri: str | None,
) -> None:
    """List what to check, with what a run shows for each item, and what to decide.

    KIND is the name of a finding, such as loss_spike. Default: the worst finding of the run, else a general list.
    A run or a path in its place is that of --run.
    """
    is_run = kind is not None and (_RUN_ID.fullmatch(kind) is not None or Path(kind).exists())
    if is_run and run is None and not last:
        kind, run = None, kind
    kind = None if kind is None else checked_kind(kind)
    if last:
        (run,) = typed_runs(() if run is None else (run,), last, tracking_uri)[-1:]
    if run is None:
        checklist = checklist_of(kind or "")
        title = f"What to check: {kind or 'a general list'}"
    else:
        with notes_console().status("Reading ..."):
            history = history_of(run, tracking_uri, asked_curves(loss, val_loss))
            diagnosis = concluded(history, asked_detectors(None, sensitivity))
            checklist = checklist_of(kind or "", history, diagnosis)
        title = f"What to check in {history.name}: {checklist.kind or 'a general list'}"
    present(lambda out: _show(out, title, checklist))


def _show(out: TerminalWriter, title: str, checklist: Checklist) -> None:
    if checklist.note:
        out.console.print(out.text(checklist.note, "yellow"))
    rows = ((_head(out, number, item), _body(out, item)) for number, item in enumerate(checklist.items, start=1))
    out.section(title, rows, space=bool(checklist.note))
    has_run = any(item.finding for item in checklist.items)
    decisions = []
    for decision in checklist.decisions:
        condition = capitalised(decision.when) if has_run else f"If {decision.when}"
        decisions.append((out.text("-"), out.text(f"{condition}: ").append_text(out.text(decision.do, "bold"))))
    out.section("Decision", decisions)


def _head(out: TerminalWriter, number: int, item: ChecklistItem) -> Text:
    head = out.text(f"{number}.")
    return head.append(f" {item.state}", STYLES[item.state]) if item.finding else head


def _body(out: TerminalWriter, item: ChecklistItem) -> Text:
    lines = [out.text(item.question, "bold")]
    if item.finding:
        lines.append(out.text(item.finding))
    lines.append(out.text(f"manual check: {item.how}", "dim"))
    return Text("\n").join(lines)
