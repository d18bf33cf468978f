"""`diagnose`: what went wrong in runs and logs, why, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
from rich.text import Text

from mlflow_stability.analysis.diagnose import asked_detectors, diagnose_all, filter_kinds
from mlflow_stability.analysis.source import names_a_source, resolve_source, runs_among
from mlflow_stability.cli.finding_types import checked_kinds, complete_kinds
from mlflow_stability.cli.main import COULD_NOT, FOUND
from mlflow_stability.cli.options import (
    curve_options,
    detectors_option,
    last_option,
    output_options,
    sensitivity_option,
    tracking_uri_option,
    typed_runs,
)
from mlflow_stability.cli.output import MAX_WIDTH, form_for, must_not_overwrite, note, notes_console, present, put_out
from mlflow_stability.errors import StabilityError
from mlflow_stability.reports import brief, run_terminal
from mlflow_stability.reports.escape import plain, plain_lines
from mlflow_stability.reports.report import Failure, Report, is_from_store
from mlflow_stability.reports.report_format import FORMATS, render
from mlflow_stability.reports.terminal_kit import TerminalWriter, written
from mlflow_stability.vocabulary.result import Diagnosis, Severity

FLOORS = {"warning": Severity.WARNING, "critical": Severity.CRITICAL}


@click.command("diagnose")
@click.argument("sources", metavar="RUN|PATH...", nargs=-1, type=click.Path())
@last_option
@click.option("--verbose", "-v", is_flag=True, help="Show everything: all runs, curves, evidence, INFO findings.")
@click.option("--brief", "briefly", is_flag=True, help="Only verdict, cause and actions; as JSON under 8 KB a run.")
@click.option(
    "--issue-type",
    "kinds",
    multiple=True,
    metavar="KIND",
    callback=checked_kinds,
    shell_complete=complete_kinds,
    help="Show and count only this kind; may be repeated.  [all]",
)
@sensitivity_option
@detectors_option
@curve_options
@output_options(FORMATS)
@click.option("--log-to-run", is_flag=True, help="Log the report to each run: stability/report.html and report.json.")
@click.option(
    "--fail-on",
    type=click.Choice(list(FLOORS)),
    default="warning",
    show_default=True,
    help="Lowest severity that gives exit code 1.",
)
@tracking_uri_option
def command(
    sources: tuple[str, ...],
    last: bool,
    verbose: bool,
    briefly: bool,
    kinds: tuple[str, ...],
    sensitivity: str,
    detectors: tuple[str, ...],
    loss: str | None,
    val_loss: str | None,
    form: str | None,
    file: Path | None,
    log_to_run: bool,
    fail_on: str,
    tracking_uri: str | None,
) -> int:
    """Diagnose runs and logs: what went wrong, the likely cause, what to change.

    Takes runs of MLflow by id, the beginning of an id, or name; and log files, folders of logs and mlruns folders. An
    existing path is read as a path, without a server.

    Exit code 0: no warnings. 1: a WARNING or CRITICAL finding. 2: an input could not be read; the others
    are shown.
    """
    form = form_for(file, form)
    if briefly and (verbose or form not in ("rich", "json")):
        raise click.UsageError("--brief goes with --output-format rich or json, and not with --verbose.")
    sources = tuple(runs_among(typed_runs(sources, last, tracking_uri)))
    must_not_overwrite(file, sources)
    if log_to_run:
        for source in sources:
            try:
                asked = resolve_source(source, tracking_uri)
            except StabilityError:
                continue  # reading it raises the same error
            if asked.is_path:
                raise click.UsageError(f"--log-to-run needs a run, and {plain(source)} is a file or folder.")
    judges = asked_detectors(detectors or None, sensitivity)
    diagnoses: list[Diagnosis] = []
    failures: list[Failure] = []
    for source in sources:
        with notes_console().status(Text(f"Reading {plain(source)} ...")):
            for result in diagnose_all([source], tracking_uri, loss=loss, val_loss=val_loss, detectors=judges):
                if isinstance(result, Failure):
                    failures.append(result)
                else:
                    diagnoses.append(result)
    report = Report(tuple(filter_kinds(diagnosis, kinds) for diagnosis in diagnoses), tuple(failures))
    must_not_overwrite(file, (diagnosis.source for diagnosis in diagnoses))
    if briefly:
        if form == "json":
            put_out(brief.render(report), file)
        elif file is not None:
            put_out(written(lambda console: run_terminal.show_brief(TerminalWriter(console), report), MAX_WIDTH), file)
        elif report.diagnoses:
            present(lambda out: run_terminal.show_brief(out, report))
    else:
        _show(report, form, file, verbose)
    if file is not None:
        note(f"Written to {file}")
    _print_notes(sources, report, tracking_uri)
    if log_to_run:
        _log(report, tracking_uri)
    if failures:
        return COULD_NOT
    return FOUND if report.worst >= FLOORS[fail_on] else 0


def _show(report: Report, form: str, file: Path | None, verbose: bool) -> None:
    if form != "rich":
        put_out(render(report, form), file)
    elif file is not None:
        put_out(run_terminal.render(report, verbose=verbose), file)
    elif report.diagnoses:
        present(lambda out: run_terminal.show(out, report), verbose=verbose)


def _print_notes(sources: Sequence[str], report: Report, tracking_uri: str | None) -> None:
    """Print to stderr what could not be read, and what was taken for a path."""
    failed = {failure.source for failure in report.failures}
    for source in sources:
        remark = resolve_source(source, tracking_uri).remark if source not in failed and names_a_source(source) else ""
        if remark:
            click.echo(f"mlflow-stability: {plain(remark)}", err=True)
    for failure in report.failures:
        click.echo(f"mlflow-stability: {plain_lines(failure.message)}", err=True)


def _log(report: Report, tracking_uri: str | None) -> None:
    from mlflow_stability.tracking.run_files import log_report

    for diagnosis in report.diagnoses:
        if is_from_store(diagnosis):
            alone = Report((diagnosis,))
            files = {"report.html": render(alone, "html"), "report.json": render(alone, "json")}
            with notes_console().status("Logging the report to the run ..."):
                log_report(diagnosis.source, tracking_uri, files)
            note(f"Logged to run {diagnosis.source}: {', '.join(f'stability/{name}' for name in files)}")
