"""The options that commands share, each written once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from mlflow_stability.vocabulary.settings import Settings

_F = TypeVar("_F", bound=Callable[..., Any])


def tracking_uri_option(command: _F) -> _F:
    """`--tracking-uri`, or the environment's."""
    return click.option(
        "--tracking-uri",
        metavar="URI",
        envvar="MLFLOW_TRACKING_URI",
        help="Where runs live. Without it: MLFLOW_TRACKING_URI, else what MLflow takes by default.",
    )(command)


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
