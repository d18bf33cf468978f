"""`import`: turn logs of other tools into MLflow runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mlflow_stability.cli.options import tracking_uri_option
from mlflow_stability.cli.output import notes_console
from mlflow_stability.errors import StabilityError, UnreadableLogError
from mlflow_stability.importers.log_text import printable
from mlflow_stability.importers.open_log import read
from mlflow_stability.tracking.run_import import RunImport
from mlflow_stability.vocabulary.run import RunHistory


@click.command("import")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH...")
@click.option("--experiment", required=True, metavar="NAME", help="Experiment for the runs; created if missing.")
@tracking_uri_option
def command(paths: tuple[Path, ...], experiment: str, tracking_uri: str | None) -> None:
    """Turn logs of other tools into MLflow runs.

    PATH is a log file, a folder of logs, or a folder in MLflow's file-store layout. Every run becomes an MLflow run;
    its run id is printed. A log is imported once, even if it was moved since.
    """
    notes = notes_console()
    histories, errors = _read_all(paths)

    def print_note(text: str) -> None:
        click.echo(f"mlflow-stability: {printable(text)}", err=True)

    if histories:
        into = RunImport(experiment, tracking_uri)
        with _progress(notes, histories) as show:
            for history in histories:
                artifacts = Path(history.source, "artifacts", "stability")  # of a run that we recorded
                click.echo(into.bring(history, artifacts, show(history), print_note))
    for error in errors[1:]:
        click.echo(f"mlflow-stability: {error}", err=True)
    if errors:
        raise errors[0]


def _read_all(paths: tuple[Path, ...]) -> tuple[list[RunHistory], list[StabilityError]]:
    histories: list[RunHistory] = []
    errors: list[StabilityError] = []
    for path in paths:
        try:
            histories.extend(read(path))
        except UnreadableLogError as error:
            errors.append(error)
    return histories, errors


@contextmanager
def _progress(console: Console, histories: list[RunHistory]) -> Iterator[Callable[[RunHistory], Callable[[int], None]]]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=max(1, sum(history.points for history in histories)))
        before = 0

        def show(history: RunHistory) -> Callable[[int], None]:
            nonlocal before
            begin, before = before, before + history.points
            bar.update(task, description=printable(history.name)[:30])
            return lambda done: bar.update(task, completed=begin + done)

        yield show
