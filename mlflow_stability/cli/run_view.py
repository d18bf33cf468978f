"""Shows a run on a terminal, from what MLflow holds of it.

In: a run id. Out: how it ended, its curves, its last values, its events, what recording cost, and where to look at it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd
from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from mlflow_stability.analysis.load import load_run
from mlflow_stability.cli.terminal import WIDEST, speaks_unicode
from mlflow_stability.reports.curve import draw, number_text
from mlflow_stability.tracking.run_page import RunPage, run_page
from mlflow_stability.tracking.run_reader import RunReader
from mlflow_stability.vocabulary.event import Event, Severity

CURVES = {
    "loss": ("loss", "cyan"),
    "grad_norm": ("gradient norm", "magenta"),
    "learning_rate": ("learning rate", "blue"),
}
CURVE_ROWS = 5
MOST_EVENTS = 8
_EVENT_STYLES = {Severity.INFO: "blue", Severity.WARNING: "yellow", Severity.CRITICAL: "bold red"}


def show_run(out: Console, run_id: str, tracking_uri: str | None = None) -> None:
    """Everything about a run that fits on a page."""
    reader = RunReader(run_id, tracking_uri)
    frame = load_run(run_id, tracking_uri)
    page = run_page(run_id, tracking_uri)
    out.print()
    out.print(Rule(Text(page.name, "bold"), align="left", characters="─" if speaks_unicode(out) else "-"))
    out.print(_ending(reader.tags, frame))
    for quantity, (title, style) in CURVES.items():
        column = _column_of(frame, quantity)
        if column is not None:
            _show_curve(out, frame, column, title, style, reader.tags)
    _show_facts(out, frame, reader)
    _show_way(out, page, run_id)


def _ending(tags: dict[str, str], frame: pd.DataFrame) -> Text:
    outcome = tags.get("stability.outcome", "still running")
    seconds = float(frame["time"].max() - frame["time"].min())
    style = "green" if outcome == "finished" else "bold red" if "stability.outcome" in tags else "yellow"
    detail = tags.get("stability.outcome_detail")
    text = Text.assemble((outcome, style), f" after {len(frame)} steps in {seconds:.0f} s")
    return text.append(f": {detail}" if detail else "")


def _column_of(frame: pd.DataFrame, quantity: str) -> str | None:
    """The column of a quantity; of its first place, where it has no whole-model one."""
    names = [str(name) for name in frame.columns if str(name).partition("@")[0] == quantity]
    return next(iter(sorted(names, key=len)), None)


def _show_curve(out: Console, frame: pd.DataFrame, column: str, title: str, style: str, tags: dict[str, str]) -> None:
    rows = frame[["step", column]].dropna()
    if rows.empty:
        return
    steps, values = rows["step"].to_numpy("int64"), rows[column].to_numpy("float64")
    basis = tags.get("stability.grad_norm", "") if column == "grad_norm" else ""
    head = Text.assemble((title, f"bold {style}"), f" {basis}" if basis else "")
    last = f"{number_text(values[-1])} at step {steps[-1]}"
    width = min(out.width, WIDEST) - 2
    out.print()
    out.print(head.append(" " * max(1, width - len(head) - len(last))).append(last))
    for line in draw(steps, values, width, CURVE_ROWS, dots=speaks_unicode(out)):
        out.print(Text(line, style, no_wrap=True))


def _show_facts(out: Console, frame: pd.DataFrame, reader: RunReader) -> None:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, said in _facts(frame, reader.tags):
        table.add_row(name, said)
    events = [said for _, said in reader.said() if isinstance(said, Event)]
    table.add_row("events", f"{len(events)}" if events else "none: no NaN and no infinity in loss or gradients")
    for event in events[:MOST_EVENTS]:
        table.add_row("", Text.assemble((event.kind, _EVENT_STYLES[event.severity]), f" {event.message}"))
    out.print(Padding(table, (1, 0, 0, 0)))


def _facts(frame: pd.DataFrame, tags: dict[str, str]) -> Iterator[tuple[str, str]]:
    signals = [str(name) for name in frame.columns[4:]]
    values = int(frame[signals].notna().to_numpy().sum())
    yield "recorded", f"{len(frame)} steps, {len(signals)} signals, {values} values"
    if "stability.recording_gap" in tags:
        yield "missing", tags["stability.recording_gap"]
    if "step_time" in frame:
        times = frame["step_time"].dropna()
        yield "step time", f"median {times.median() * 1000:.1f} ms, slowest {times.max() * 1000:.1f} ms"
    if "overhead_fraction" in frame:
        share = frame["overhead_fraction"].median()
        if math.isfinite(share):
            yield "own cost", f"{share:.1%} of the training's time"


def _show_way(out: Console, page: RunPage, run_id: str) -> None:
    """How to go on; addresses are never broken over lines, so that they can be copied."""
    out.print(Padding(Text("read it back", "bold"), (1, 0, 0, 0)))
    out.print(f'  mlflow_stability.load_run("{run_id}")', soft_wrap=True, markup=False)
    out.print(Padding(Text("look at it in MLflow", "bold"), (1, 0, 0, 0)))
    if page.command:
        out.print(f"  {page.command}", soft_wrap=True, markup=False)
    out.print(f"  {page.url}", soft_wrap=True, markup=False)
