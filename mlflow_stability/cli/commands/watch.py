"""`watch`: shows how a run is while it trains."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import click
from rich.live import Live

from mlflow_stability.analysis.named_run import last_runs, run_id_of
from mlflow_stability.cli.kit.options import journal_root, last_option, tracking_uri_option
from mlflow_stability.cli.kit.output import present
from mlflow_stability.cli.kit.terminal import result_console, speaks_unicode
from mlflow_stability.cli.watch.sources import JournalSource, Source, StoreSource, newest_journal, source_of
from mlflow_stability.cli.watch.view import finding_line, status_line, view
from mlflow_stability.cli.watch.watched_run import WatchedRun
from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.terminal_kit import TerminalWriter
from mlflow_stability.vocabulary.result import Severity

LINES_ONCE = 40
A_LINE_EVERY = 10.0
"""Seconds between two lines where there is no terminal; findings are told at once."""


@click.command("watch")
@click.argument("run", required=False)
@last_option
@click.option("--once", is_flag=True, help="Show how it is now, and end.")
@click.option(
    "--interval", type=click.FloatRange(0.1), default=1.0, show_default=True, metavar="S", help="Seconds between looks."
)
@click.option(
    "--journal",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where its journal is.  [where autolog() would keep it here]",
)
@tracking_uri_option
def command(
    run: str | None, last: bool, once: bool, interval: float, journal: Path | None, tracking_uri: str | None
) -> None:
    """Watch a run while it trains: curves, findings, rollbacks, time left.

    Without RUN the newest training that is recorded in this directory, else the newest run. Read from its journal if
    that is on this machine, else from the tracking store every ten seconds. Ends with the training, or with Ctrl-C.
    """
    if run is not None and last:
        raise click.UsageError("Give a run or --last, not both.")
    followed = _followed(_source(run, last, journal or journal_root(), tracking_uri), tracking_uri)
    try:
        if once:
            shown = next(followed)
            present(lambda out: out.console.print(view(out, shown, LINES_ONCE)))
        elif result_console().is_terminal:
            _live(followed, interval)
        else:
            _lines(followed, interval)
    except KeyboardInterrupt:  # how one leaves it
        return


def _source(run: str | None, last: bool, journal: Path, tracking_uri: str | None) -> Source:
    if run is not None:
        return source_of(run_id_of(run, tracking_uri), journal, tracking_uri)
    here = None if last else newest_journal(journal)
    return here or source_of(last_runs(1, tracking_uri)[0], journal, tracking_uri)


def _followed(source: Source, tracking_uri: str | None) -> Iterator[WatchedRun]:
    """What is known, look after look, until the training has ended."""
    while True:
        run = source.look()
        if isinstance(source, JournalSource) and source.gone and run.run_id is not None:
            source = StoreSource(run.run_id, tracking_uri)
            continue
        yield run
        if run.ended:
            return


def _live(followed: Iterator[WatchedRun], interval: float) -> None:
    out = TerminalWriter(console := result_console(), unicode=speaks_unicode(result_console()))
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for run in followed:
            live.update(view(out, run, console.height), refresh=True)
            if not run.ended:
                time.sleep(interval)


def _lines(followed: Iterator[WatchedRun], interval: float) -> None:
    """A line now and then, and one for each finding, for a file or a pipe."""
    told = -A_LINE_EVERY
    known: set[tuple[str, int]] = set()
    for run in followed:
        for each in list(run.findings):
            if each.severity > Severity.INFO and (each.kind, each.start) not in known:
                known.add((each.kind, each.start))
                click.echo(plain(finding_line(each)))
        if run.ended or time.monotonic() - told >= A_LINE_EVERY:
            told = time.monotonic()
            click.echo(plain(f"{run.ended}: {status_line(run)}" if run.ended else status_line(run)))
        if not run.ended:
            time.sleep(interval)
