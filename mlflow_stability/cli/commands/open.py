"""`open`: show the report of a run in the browser."""

from __future__ import annotations

import os
import platform
import re
import webbrowser
from pathlib import Path

import click
from rich.text import Text

from mlflow_stability.analysis.cards import cache_folder
from mlflow_stability.analysis.diagnose import diagnose_all
from mlflow_stability.analysis.source import resolve_source
from mlflow_stability.cli.options import last_option, tracking_uri_option, typed_runs
from mlflow_stability.cli.output import must_be_writable, must_not_overwrite, notes_console, put_out
from mlflow_stability.errors import SettingsError, UnreadableLogError
from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.report import Failure, Report
from mlflow_stability.reports.report_format import render
from mlflow_stability.vocabulary.result import Diagnosis

_NO_FILE_NAME = re.compile(r"[^\w.-]+")
NO_BROWSER = "No browser here: copy the file to a machine that has one."


@click.command("open")
@click.argument("source", metavar="RUN|PATH", required=False, type=click.Path())
@last_option
@click.option("--no-browser", is_flag=True, help="Only print where the report is.")
@click.option(
    "--output",
    "file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    callback=must_be_writable,
    metavar="FILE",
    help="Where to write the page.  [the user's cache folder]",
)
@tracking_uri_option
def command(source: str | None, last: bool, no_browser: bool, file: Path | None, tracking_uri: str | None) -> None:
    """Open the report of a run in the browser.

    The page is made from what the run has now, while it trains too; a log has one as well. Prints its path. The report
    that a run got at its end is among its artifacts: stability/report.html.
    """
    if (source is None) is not last:
        raise click.UsageError("Give a run id, a run's name, the path of a log, or --last.")
    (source,) = typed_runs(() if source is None else (source,), int(last), tracking_uri)
    must_not_overwrite(file, [source])
    with notes_console().status(Text(f"Reading {plain(source)} ...")):
        results = list(diagnose_all([resolve_source(source, tracking_uri).source], tracking_uri))
        diagnoses = tuple(result for result in results if isinstance(result, Diagnosis))
        failures = tuple(result for result in results if isinstance(result, Failure))
        if not diagnoses:
            raise UnreadableLogError(failures[0].message)
        page = render(Report(diagnoses, failures), "html")
    file = file or _cached_page(diagnoses[0].source if len(diagnoses) == 1 else source)
    put_out(page, file)
    click.echo(str(file))
    if no_browser:
        return
    if not has_browser():
        click.echo(f"mlflow-stability: {NO_BROWSER}", err=True)
    elif not webbrowser.open(file.absolute().as_uri()):
        click.echo("mlflow-stability: The browser could not be started; open the file in it.", err=True)


def has_browser() -> bool:
    """Whether a window can be opened here; a browser in the terminal is no use."""
    if os.environ.get("BROWSER"):
        return True
    if platform.system() == "Linux":
        return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return not os.environ.get("SSH_CONNECTION")


def _cached_page(name: str) -> Path:
    """Return the file of this run's report in the cache, which the next report replaces."""
    root = cache_folder()
    if root is None:
        raise SettingsError("There is no home folder to keep the page in. Give --output FILE.")
    folder = root.parent / "reports"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise SettingsError(f"No page can be kept in {folder}: {error.strerror}. Give --output FILE.") from None
    return folder / f"{_NO_FILE_NAME.sub('-', name).strip('-.')[-80:]}.html"
