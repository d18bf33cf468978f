"""`watch`: follow a run in its journal, if that is on this machine, else in the tracking store.

A journal that its courier has delivered and removed is followed up in the store; while a store does not answer, the
last state is shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import click
from rich.live import Live

from mlflow_stability.analysis.named_run import last_runs, run_id_of
from mlflow_stability.cli.options import journal_root, last_option, tracking_uri_option
from mlflow_stability.cli.output import present, result_console, speaks_unicode
from mlflow_stability.cli.watch.view import finding_line, status_line, view
from mlflow_stability.cli.watch.watched_run import QUANTITIES, WatchedRun
from mlflow_stability.courier.progress import Delivered
from mlflow_stability.courier.training_process import process_of
from mlflow_stability.errors import RunNotFoundError, TrackingError
from mlflow_stability.journal.follower import JournalFollower, is_deleted, opening_if_readable
from mlflow_stability.journal.layout import recording_folders, session_folders
from mlflow_stability.journal.writer import JOURNAL
from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.terminal_kit import TerminalWriter
from mlflow_stability.vocabulary.result import Severity

WINDOW_LINES = 40
"""Height of the view with `--once`."""
LINE_INTERVAL = 10.0
"""Seconds between two status lines where there is no terminal; findings are printed at once."""
STORE_INTERVAL = 10.0
"""Seconds between two requests to a tracking store."""


class _JournalSource:
    """The journal of one recording."""

    def __init__(self, folder: Path) -> None:
        self._run = WatchedRun(f"recording {folder.parent.name}")
        self._folder = folder
        self._follower = JournalFollower(folder / JOURNAL)
        self._process = process_of(folder.parent, opening_if_readable(folder))

    def read(self) -> WatchedRun:
        """Read what was appended; return the state of the run."""
        alive = self._process.alive()  # before reading, so that its last records are not missed
        delivered = Delivered.read(self._folder)
        if delivered.run_id:
            self._run.run_id, self._run.name = delivered.run_id, f"run {delivered.run_id[:12]}"
        while entries := self._follower.read():
            for entry in entries:
                self._run.add(entry.record, delivered.offset)
        if not self.is_removed() and not alive and not self._run.ended:
            self._run.ended = "its process is gone"
        return self._run

    def is_removed(self) -> bool:
        """Whether all of it was delivered, and it was removed."""
        return is_deleted(self._folder)


class _StoreSource:
    """A run in a tracking store."""

    def __init__(self, run_id: str, tracking_uri: str | None) -> None:
        self._run_id, self._uri = run_id, tracking_uri
        self._last: WatchedRun | None = None
        self._last_time = 0.0

    def read(self) -> WatchedRun:
        """Return the state of the run; the store is asked only after a while."""
        if self._last is not None and time.monotonic() - self._last_time < STORE_INTERVAL:
            return self._last
        try:
            self._last = self._request()
        except TrackingError:
            if self._last is None:
                raise
        self._last_time = time.monotonic()
        return self._last

    def _request(self) -> WatchedRun:
        from mlflow_stability.tracking.read.run_reader import RunReader

        reader = RunReader(self._run_id, self._uri)
        run = WatchedRun(reader.name, reader.run_id)
        points = reader.metric_points(QUANTITIES)
        if points is None:
            # A run that has just begun may get its first metrics in a moment.
            soon = " yet; the first arrive a few seconds after the first steps" if reader.status == "RUNNING" else ""
            raise RunNotFoundError(
                f"Run {self._run_id} has no metrics of mlflow-stability{soon}. "
                "To record a training, call mlflow_stability.autolog() in its script, or start it with "
                "`mlflow-stability run train.py`. "
                f"What others logged is judged by `mlflow-stability diagnose {self._run_id[:8]}`."
            )
        for reading in points.readings():
            run.add(reading)
        for _, event in reader.event_lines():
            run.add(event)
        run.ended = "" if reader.status == "RUNNING" else run.ended or reader.status.lower()
        return run


_Source = _JournalSource | _StoreSource


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
    states = _states(_source(run, last, journal or journal_root(), tracking_uri), tracking_uri)
    try:
        if once:
            state = next(states)
            present(lambda out: out.console.print(view(out, state, WINDOW_LINES)))
        elif result_console().is_terminal:
            _show_live(states, interval)
        else:
            _print_lines(states, interval)
    except KeyboardInterrupt:  # the usual way to leave it
        return


def _source(run: str | None, last: bool, journal: Path, tracking_uri: str | None) -> _Source:
    """Return the journal of the run that was meant, else the store."""
    recordings = [folder for session in session_folders(journal) for folder in recording_folders(session)]
    if run is None and not last and recordings:
        return _JournalSource(recordings[-1])
    run_id = last_runs(1, tracking_uri)[0] if run is None else run_id_of(run, tracking_uri)
    for folder in reversed(recordings):
        if Delivered.read(folder).run_id == run_id.lower():
            return _JournalSource(folder)
    return _StoreSource(run_id, tracking_uri)


def _states(source: _Source, tracking_uri: str | None) -> Iterator[WatchedRun]:
    """Yield the state of the run again and again, until the training has ended."""
    while True:
        run = source.read()
        if isinstance(source, _JournalSource) and source.is_removed() and run.run_id is not None:
            source = _StoreSource(run.run_id, tracking_uri)
            continue
        yield run
        if run.ended:
            return


def _show_live(states: Iterator[WatchedRun], interval: float) -> None:
    console = result_console()
    out = TerminalWriter(console, unicode=speaks_unicode(console))
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for run in states:
            live.update(view(out, run, console.height), refresh=True)
            if not run.ended:
                time.sleep(interval)


def _print_lines(states: Iterator[WatchedRun], interval: float) -> None:
    """Print a line now and then, and one for each finding, for a file or a pipe."""
    last_line = -LINE_INTERVAL
    printed: set[tuple[str, int]] = set()
    for run in states:
        for finding in list(run.findings):
            if finding.severity > Severity.INFO and (finding.kind, finding.start) not in printed:
                printed.add((finding.kind, finding.start))
                click.echo(plain(finding_line(finding)))
        if run.ended or time.monotonic() - last_line >= LINE_INTERVAL:
            last_line = time.monotonic()
            click.echo(plain(f"{run.ended}: {status_line(run)}" if run.ended else status_line(run)))
        if not run.ended:
            time.sleep(interval)
