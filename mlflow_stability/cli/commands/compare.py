"""`compare`: which of many runs are unstable, since which step, and what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mlflow_stability.analysis.compare import MOST_RUNS, NoneReadError, compare
from mlflow_stability.analysis.source import run_id_of
from mlflow_stability.cli.main import COULD_NOT, FOUND, INTERRUPTED
from mlflow_stability.cli.options import (
    curve_options,
    detectors_option,
    output_options,
    sensitivity_option,
    tracking_uri_option,
    typed_runs,
)
from mlflow_stability.cli.output import form_for, must_not_overwrite, note, notes_console, present, put_out
from mlflow_stability.reports import comparison_terminal
from mlflow_stability.reports.escape import plain, plain_lines
from mlflow_stability.reports.report_format import FORMATS, render_comparison
from mlflow_stability.vocabulary.result import Comparison, Severity


@click.command("compare")
@click.argument("sources", metavar="RUN|PATH...", nargs=-1, type=click.Path())
@click.option("--last", type=click.IntRange(1), metavar="N", help="Compare the N runs that were started last.")
@click.option("--experiment", metavar="NAME", help="Compare all runs of this experiment (name or id).")
@click.option("--filter", "condition", metavar="FILTER", help="Only runs that match, e.g. \"params.lr = '0.1'\".")
@click.option(
    "--max-runs",
    type=click.IntRange(1),
    default=MOST_RUNS,
    show_default=True,
    metavar="N",
    help="Of more runs in the experiment, compare the N newest.",
)
@click.option("--baseline", metavar="RUN", help="Baseline run: exit code 1 if any other is worse.")
@click.option("--verbose", "-v", is_flag=True, help="Show everything: all runs, causes, parameters and groups.")
@curve_options
@sensitivity_option
@detectors_option
@output_options(FORMATS)
@click.option("--log-to-run", metavar="RUN", help="Log the comparison to this run as HTML and JSON.")
@click.option("--log-to-experiment", metavar="NAME", help="Log it to this experiment as a new run.")
@click.option("--dask", metavar="ADDRESS", help="Read the runs on a dask.distributed cluster: tcp://HOST:PORT.")
@click.option("--no-cache", is_flag=True, help="Read all runs again and cache nothing.")
@tracking_uri_option
def command(
    sources: tuple[str, ...],
    last: int | None,
    experiment: str | None,
    condition: str | None,
    max_runs: int,
    baseline: str | None,
    verbose: bool,
    loss: str | None,
    val_loss: str | None,
    sensitivity: str,
    detectors: tuple[str, ...],
    form: str | None,
    file: Path | None,
    log_to_run: str | None,
    log_to_experiment: str | None,
    dask: str | None,
    no_cache: bool,
    tracking_uri: str | None,
) -> int:
    """Compare runs: which are unstable, since which step, what they have in common.

    Takes runs of MLflow by id, the beginning of an id, or name; paths of logs; or an experiment. Results of finished
    runs are cached.

    Exit code 0: no warnings. 1: a WARNING or CRITICAL finding, or a run is worse than the baseline. 2: an
    input could not be read; the others are shown. 130: Ctrl-C; what was done so far is shown.
    """
    if not sources and experiment is None and last is None:
        raise click.UsageError("Give run ids, run names, paths of logs, --last N or --experiment NAME.")
    form = form_for(file, form)
    if last is not None:
        sources = typed_runs(sources, last, tracking_uri)
    if log_to_run is not None:
        log_to_run = run_id_of(log_to_run, tracking_uri)
    must_not_overwrite(file, sources)
    with _reading_progress() as show_progress:
        try:
            comparison = compare(
                sources,
                experiment=experiment,
                filter=condition,
                max_runs=max_runs,
                baseline=baseline,
                tracking_uri=tracking_uri,
                loss=loss,
                val_loss=val_loss,
                sensitivity=sensitivity,
                detectors=detectors or None,
                dask=dask,
                remember=not no_cache,
                progress=show_progress,
            )
        except NoneReadError as error:
            comparison = error.comparison
    must_not_overwrite(file, (card.source for card in comparison.cards))
    _show(comparison, form, file, verbose)
    if file is not None:
        note(f"Written to {file}")
    _print_notes(comparison, form)
    _log(comparison, log_to_run, log_to_experiment, tracking_uri)
    if comparison.interrupted:
        return INTERRUPTED
    if comparison.unread:
        return COULD_NOT
    worse = comparison.gate is not None and not comparison.gate.passed
    return FOUND if worse or comparison.severity > Severity.INFO else 0


def _show(comparison: Comparison, form: str, file: Path | None, verbose: bool) -> None:
    if form != "rich":
        put_out(render_comparison(comparison, form), file)
    elif file is not None:
        put_out(comparison_terminal.render(comparison, verbose=verbose), file)
    else:
        present(lambda out: comparison_terminal.show(out, comparison), verbose=verbose)


def _print_notes(comparison: Comparison, form: str) -> None:
    """Print to stderr what a result in another format does not say to a person."""
    if form == "rich":
        return
    for card in comparison.unread:
        click.echo(f"mlflow-stability: {plain_lines(card.error)}", err=True)
    for verdict in comparison.gate.verdicts if comparison.gate else ():
        if not verdict.passed:
            text = f"{verdict.name or verdict.source} is worse than the baseline: {' '.join(verdict.reasons)}"
            click.echo(f"mlflow-stability: {plain(text)}", err=True)


def _log(comparison: Comparison, run_id: str | None, experiment: str | None, tracking_uri: str | None) -> None:
    if run_id is None and experiment is None:
        return
    files = {
        "comparison.html": render_comparison(comparison, "html"),
        "comparison.json": render_comparison(comparison, "json"),
    }
    if run_id is not None:
        from mlflow_stability.tracking.run_files import log_report

        with notes_console().status("Logging the comparison to the run ..."):
            log_report(run_id, tracking_uri, files)
        note(_logged(run_id, files))
    if experiment is not None:
        from mlflow_stability.tracking.run_files import log_comparison

        with notes_console().status("Logging the comparison to the experiment ..."):
            new_run = log_comparison(experiment, tracking_uri, files, comparison.summary)
        note(_logged(new_run, files))


def _logged(run_id: str, files: Iterable[str]) -> str:
    return f"Logged to run {run_id}: {', '.join(f'stability/{name}' for name in files)}"


@contextmanager
def _reading_progress() -> Iterator[Callable[[int, int, int], None]]:
    """Show a bar on stderr while runs are read, with the time that is left, on a terminal only."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    console = notes_console()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("Reading runs", total=None, visible=False)

        def show(done: int, total: int, failed: int) -> None:
            text = f"Reading runs ({failed} failed)" if failed else "Reading runs"
            bar.update(task, completed=done, total=total, description=text, visible=True)

        yield show
