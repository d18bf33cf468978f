"""The options that commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from mlflow_stability.analysis.source import last_runs, run_id_of
from mlflow_stability.cli.output import must_be_writable
from mlflow_stability.vocabulary.judging import SENSITIVITIES
from mlflow_stability.vocabulary.settings import Settings

_F = TypeVar("_F", bound=Callable[..., Any])


def tracking_uri_option(command: _F) -> _F:
    return click.option(
        "--tracking-uri",
        metavar="URI",
        envvar="MLFLOW_TRACKING_URI",
        help="MLflow tracking server or store. Default: MLFLOW_TRACKING_URI, else MLflow's default.",
    )(command)


def last_option(command: _F) -> _F:
    return click.option("--last", is_flag=True, help="The run that was started last.")(command)


def typed_runs(sources: tuple[str, ...], last: int, tracking_uri: str | None) -> tuple[str, ...]:
    """Return what was typed, and this many of the newest runs."""
    if not sources and not last:
        raise click.UsageError("Give run ids, run names or paths of logs, or --last.")
    return (*sources, *(last_runs(last, tracking_uri) if last else ()))


def typed_run(run: str | None, last: bool, tracking_uri: str | None) -> str:
    if (run is None) is not last:
        raise click.UsageError("Give a run id, its beginning or a run's name, or --last.")
    return last_runs(1, tracking_uri)[0] if run is None else run_id_of(run, tracking_uri)


def curve_options(command: _F) -> _F:
    """Add `--loss` and `--val-loss`: the curves to judge."""
    validation = click.option("--val-loss", metavar="NAME", help="Metric to use as the validation loss.  [auto]")
    return click.option("--loss", metavar="NAME", help="Metric to use as the loss.  [auto]")(validation(command))


def sensitivity_option(command: _F) -> _F:
    return click.option(
        "--sensitivity",
        type=click.Choice(list(SENSITIVITIES)),
        default="normal",
        show_default=True,
        help="low: fewer false alarms; high: finds more.",
    )(command)


def detectors_option(command: _F) -> _F:
    """Add `--detectors`, as `detectors=` of the functions takes them."""
    return click.option(
        "--detectors",
        multiple=True,
        metavar="NAME",
        help="Judge by these: loss_spike:classic, 'LossSpike(threshold=10)'; default: all others. May be repeated.",
    )(command)


def output_options(formats: Iterable[str]) -> Callable[[_F], _F]:
    """Add `--output-format` and `--output`."""

    def add_both(command: _F) -> _F:
        to_file = click.option(
            "--output",
            "file",
            type=click.Path(dir_okay=False, writable=True, path_type=Path),
            callback=must_be_writable,
            metavar="FILE",
            help="Write to this file instead of stdout.",
        )
        form = click.option(
            "--output-format",
            "form",
            type=click.Choice(list(formats)),
            help="Default: from the extension of --output, else rich.",
        )
        return form(to_file(command))

    return add_both


def journal_root() -> Path:
    return Settings().journal_root()
