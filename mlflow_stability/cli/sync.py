"""`sync`: delivers what journals still hold after a kill, a reboot, or while the server was away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from mlflow_stability.cli.journals import SessionState, sessions_in
from mlflow_stability.cli.options import journal_argument, journal_root, tracking_uri_option
from mlflow_stability.cli.terminal import megabytes, notes_console, result_console
from mlflow_stability.courier.deliver import deliver_session
from mlflow_stability.courier.environment import ask_for_short_requests
from mlflow_stability.courier.session_delivery import DeliveryReport
from mlflow_stability.errors import SettingsError, TrackingError
from mlflow_stability.tracking.address import same_store, strip_credentials


@click.command("sync")
@journal_argument
@tracking_uri_option
@click.option(
    "--wait",
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="For how long to try again while the store does not answer.",
)
@click.pass_context
def command(context: click.Context, journal: Path | None, tracking_uri: str | None, wait: float) -> None:
    """Deliver what journals still hold.

    JOURNAL is a journal directory, or one session in it; without it, the one that autolog() would use here. What has
    arrived before is not sent again. A session that its own courier is delivering is left to it.

    --tracking-uri is for credentials, which no journal holds: it has to name the store that the training recorded for.
    """
    place = journal or journal_root()
    sessions = sessions_in(place)
    if context.get_parameter_source("tracking_uri") is click.core.ParameterSource.COMMANDLINE and tracking_uri:
        _must_be_the_same_store(sessions, tracking_uri)
    ask_for_short_requests()
    out = result_console()
    errors = []
    for session in sessions:
        with _progress(notes_console(), session) as show:
            report = deliver_session(session.folder, tracking_uri, wait, show)
        for line in report_lines(session, report):
            out.print(line, soft_wrap=True)
        if report.error and report.remaining:
            errors.append(report.error)
    if not sessions:
        out.print(f"Nothing to deliver: there is no journal in {place}.", soft_wrap=True)
    if errors:
        raise TrackingError(
            f"Not everything could be delivered. {errors[0].rstrip('.')}. What is left is kept in {place}; "
            "run `mlflow-stability sync` again when the store answers."
        )


def report_lines(session: SessionState, report: DeliveryReport) -> Iterator[str]:
    """What became of one session, a line for each thing worth saying."""
    name = session.folder.name
    if report.busy:
        yield f"{name}: left to its own courier, which is delivering it."
        return
    runs = ", ".join(report.run_ids) or "no run"
    if report.delivered or not report.remaining:
        count = f"{report.delivered} recording{'' if report.delivered == 1 else 's'}"
        yield f"{name}: delivered {count} ({megabytes(session.size)}) to {runs}."
    if report.kept_for:
        yield (
            f"{name}: its journal is kept: {report.kept_for} cannot be asked from here whether it has ended. Run "
            "`mlflow-stability sync` there, or delete the folder when it has."
        )
    if report.remaining:
        why = "the training goes on" if session.training_lives and not report.error else report.error or "not all sent"
        yield f"{name}: {megabytes(report.waiting_bytes)} not delivered ({why})."
    if report.refused:
        yield f"{name}: the store refused {', '.join(report.refused)}; the full record has them."


def _must_be_the_same_store(sessions: list[SessionState], uri: str) -> None:
    for session in sessions:
        for opening in session.openings:
            if opening.tracking_uri is not None and not same_store(uri, opening.tracking_uri, opening.directory):
                raise SettingsError(
                    f"{session.folder.name} was recorded for {opening.tracking_uri}, and {strip_credentials(uri)} is "
                    "another store. Leave --tracking-uri out, or name the same store with its credentials."
                )


@contextmanager
def _progress(console: Console, session: SessionState) -> Iterator[Callable[[DeliveryReport], None]]:
    """A bar that is there while something is sent, on a terminal only."""
    columns = (TextColumn(session.folder.name), BarColumn(20), TextColumn("{task.fields[left]} left"))
    hidden = not console.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=max(1, session.size), left=megabytes(session.size))

        def show(report: DeliveryReport) -> None:
            done = session.size - report.waiting_bytes
            bar.update(task, completed=max(0, done), left=megabytes(report.waiting_bytes))

        yield show
