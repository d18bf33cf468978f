"""The options that commands share, each written once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from mlflow_stability.analysis.named_run import last_runs, run_id_of
from mlflow_stability.cli.kit.output import must_be_writable
from mlflow_stability.vocabulary.judging import SENSITIVITIES
from mlflow_stability.vocabulary.settings import Settings

_F = TypeVar("_F", bound=Callable[..., Any])


def tracking_uri_option(command: _F) -> _F:
    """`--tracking-uri`, or the environment's."""
    return click.option(
        "--tracking-uri",
        metavar="URI",
        envvar="MLFLOW_TRACKING_URI",
        help="MLflow tracking server or store. Default: MLFLOW_TRACKING_URI, else MLflow's default.",
    )(command)


def last_option(command: _F) -> _F:
    """`--last`, wherever a run id goes."""
    return click.option("--last", is_flag=True, help="The run that was started last.")(command)


def runs_asked_for(sources: tuple[str, ...], last: int, tracking_uri: str | None) -> tuple[str, ...]:
    """What was typed, and so many of the newest runs."""
    if not sources and not last:
        raise click.UsageError("Give run ids, run names or paths of logs, or --last.")
    return (*sources, *(last_runs(last, tracking_uri) if last else ()))


def run_asked_for(run: str | None, last: bool, tracking_uri: str | None) -> str:
    """The whole id of the one run that was meant."""
    if (run is None) is not last:
        raise click.UsageError("Give a run id, its beginning or a run's name, or --last.")
    return last_runs(1, tracking_uri)[0] if run is None else run_id_of(run, tracking_uri)


def curve_options(command: _F) -> _F:
    """`--loss` and `--val-loss`: the curves to judge."""
    validation = click.option("--val-loss", metavar="NAME", help="Metric to use as the validation loss.  [auto]")
    return click.option("--loss", metavar="NAME", help="Metric to use as the loss.  [auto]")(validation(command))


def sensitivity_option(command: _F) -> _F:
    """`--sensitivity`, for detectors and rules alike."""
    return click.option(
        "--sensitivity",
        type=click.Choice(list(SENSITIVITIES)),
        default="normal",
        show_default=True,
        help="low: fewer false alarms; high: finds more.",
    )(command)


def detectors_option(command: _F) -> _F:
    """`--detectors`, as `detectors=` of the functions takes them."""
    return click.option(
        "--detectors",
        multiple=True,
        metavar="NAME",
        help="Judge by these: loss_spike:classic, 'LossSpike(threshold=10)'; default: all others. May be repeated.",
    )(command)


def output_options(formats: Iterable[str]) -> Callable[[_F], _F]:
    """`--output-format` and `--output`, which says the format by its ending."""

    def both(command: _F) -> _F:
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

    return both


def journal_argument(command: _F) -> _F:
    """A journal directory, or one session in it."""
    return click.argument(
        "journal",
        required=False,
        type=click.Path(exists=True, file_okay=False, path_type=Path),
    )(command)


def journal_root() -> Path:
    """Where `autolog()` would keep journals if it were called here."""
    return Settings().journal_root()
