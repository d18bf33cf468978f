"""Looks at the file that a report is to go to, before anything is read: may it be written, and in which form?

In: what was typed for `--output` and `--output-format`. Out: the form, or a sentence that says why not. Promised: no
log that was asked about is written over, whatever name it is given by.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import click

from mlflow_stability.errors import SettingsError
from mlflow_stability.reports.formats import ENDINGS, form_of
from mlflow_stability.reports.harmless import plain

USUAL = "rich"
"""The form where nothing says another."""


def must_be_writable(_context: click.Context, _option: click.Parameter, file: Path | None) -> Path | None:
    """Refuse a file in a folder that is not there, before anything is read."""
    if file is not None and not file.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {file.absolute().parent}.")
    return file


def form_for(file: Path | None, asked: str | None) -> str:
    """The form that was asked for, else the one that the file's ending says."""
    if asked is not None or file is None:
        return asked or USUAL
    form = form_of(file)
    if form is None and file.suffix:
        raise click.UsageError(
            f"--output: nothing is known to go into {plain(file.suffix)} files. Known endings: {', '.join(ENDINGS)}; "
            "or say --output-format."
        )
    return form or USUAL


def must_not_overwrite(file: Path | None, sources: Iterable[str]) -> None:
    """Refuse a file that is one of these."""
    if file is None or not file.is_file():
        return
    for source in sources:
        if os.path.isfile(source) and os.path.samefile(file, source):  # noqa: PTH113, PTH121 - may be a run's id
            raise SettingsError(
                f"--output {file} is one of the logs that were asked about, and would be written over. "
                "Name another file."
            )
