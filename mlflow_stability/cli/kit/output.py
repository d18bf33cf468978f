"""Puts a result where it was asked for: on a terminal, into a pipe, or into a file.

In: text, or what draws on a console. Out: colours and the like for a terminal; else bytes in UTF-8, whatever the
environment's own encoding. A reader that has enough, such as `head`, is no error, and no reader at all is none.

Looks at the file that a report is to go to, before anything is read: may it be written, and in which form?

In: what was typed for `--output` and `--output-format`. Out: the form, or a sentence that says why not. Guarantees: no
log that was asked about is written over, whatever name it is given by.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TextIO

import click

from mlflow_stability.cli.kit.terminal import result_console, speaks_unicode
from mlflow_stability.errors import SettingsError
from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.report_format import ENDINGS, form_of
from mlflow_stability.reports.terminal_kit import TerminalWriter, written


def present(draw: Callable[[TerminalWriter], None], *, verbose: bool = False) -> None:
    """Show a person the result: with colours on a terminal, as plain text of its width in a pipe."""
    out = result_console()
    unicode = speaks_unicode(out)
    if out.is_terminal:
        draw(TerminalWriter(out, unicode=unicode, verbose=verbose))
    else:
        put_out(written(lambda console: draw(TerminalWriter(console, unicode=unicode, verbose=verbose)), out.width))


def put_out(text: str, file: Path | None = None) -> None:
    """Write the result."""
    data = text.encode("utf-8")
    if file is not None:
        try:
            file.write_bytes(data)
        except OSError as error:
            raise SettingsError(f"The report could not be written to {file}: {error.strerror}.") from error
        return
    out: TextIO | None = sys.stdout
    if out is None:
        return  # it was closed before we began, as by `>&-`: only the exit code is wanted
    try:
        out.flush()
        out.buffer.write(data)
        out.buffer.flush()
    except OSError as error:
        # Python flushes once more at its end; what is left goes nowhere, silently.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        if not isinstance(error, BrokenPipeError):
            raise SettingsError(f"The result could not be written: {error.strerror}.") from error


USUAL = "rich"
"""The form where nothing says another."""


def must_be_writable(_context: click.Context, _option: click.Parameter, file: Path | None) -> Path | None:
    """Refuse a file in a folder that is not there, before anything is read."""
    if file is not None and not file.absolute().parent.is_dir():
        raise click.BadParameter(f"no such folder: {file.absolute().parent}.")
    return file


def form_for(file: Path | None, asked: str | None) -> str:
    """The form that was asked for, else the one that the file's ending says."""
    if asked is not None or file is None:
        return asked or USUAL
    form = form_of(file)
    if form is None and file.suffix:
        raise click.UsageError(
            f"--output: unknown output format: {plain(file.suffix)} files. Known endings: {', '.join(ENDINGS)}; "
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
                f"--output {file} is one of the input logs and would be overwritten. Choose another file."
            )
