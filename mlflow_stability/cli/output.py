"""Write results to a terminal, a pipe or a file, and notes to stderr.

With colours on a terminal; else bytes in UTF-8, whatever the encoding of the environment. A reader that has enough,
such as `head`, and a closed stdout are no errors.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TextIO

import click
from rich.console import Console
from rich.text import Text

from mlflow_stability.errors import SettingsError
from mlflow_stability.reports.escape import plain
from mlflow_stability.reports.report_format import ENDINGS, form_of
from mlflow_stability.reports.terminal_kit import TerminalWriter, written

MAX_WIDTH = 100
DEFAULT_FORM = "rich"


def result_console() -> Console:
    return _limited(Console(highlight=False))


def notes_console() -> Console:
    return _limited(Console(stderr=True, highlight=False))


def _limited(console: Console) -> Console:
    console.width = min(console.width, MAX_WIDTH)
    return console


def note(text: str) -> None:
    """Show a note to a person at a terminal; a script has the exit code."""
    notes = notes_console()
    if notes.is_terminal:
        notes.print(Text(plain(text)), soft_wrap=True)


def speaks_unicode(console: Console) -> bool:
    """Whether lines and dots of Unicode can be written there."""
    return console.encoding.lower().startswith("utf")


def megabytes(size: float) -> str:
    """Format a size: `12.3 MB`, `18 kB`."""
    if size < 1e5:
        return f"{size / 1e3:.0f} kB"
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.1f} GB"


def present(draw: Callable[[TerminalWriter], None], *, verbose: bool = False) -> None:
    """Show the result with colours on a terminal, as plain text of its width in a pipe."""
    out = result_console()
    unicode = speaks_unicode(out)
    if out.is_terminal:
        draw(TerminalWriter(out, unicode=unicode, verbose=verbose))
    else:
        put_out(written(lambda console: draw(TerminalWriter(console, unicode=unicode, verbose=verbose)), out.width))


def put_out(text: str, file: Path | None = None) -> None:
    data = text.encode("utf-8")
    if file is not None:
        try:
            file.write_bytes(data)
        except OSError as error:
            raise SettingsError(f"The report could not be written to {file}: {error.strerror}.") from error
        return
    out: TextIO | None = sys.stdout
    if out is None:
        return  # closed, as by `>&-`: only the exit code is wanted
    try:
        out.flush()
        out.buffer.write(data)
        out.buffer.flush()
    except OSError as error:
        # Python flushes once more at its end; what is left goes nowhere, silently.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        if not isinstance(error, BrokenPipeError):
            raise SettingsError(f"The result could not be written: {error.strerror}.") from error


def must_be_writable(_context: click.Context, _option: click.Parameter, file: Path | None) -> Path | None:
    """Refuse a file in a folder that does not exist, before anything is read."""
    if file is not None and not file.absolute().parent.is_dir():
        raise click.BadParameter(f"no such folder: {file.absolute().parent}.")
    return file


def form_for(file: Path | None, form: str | None) -> str:
    """Return the output format that was typed, else that of the file's ending."""
    if form is not None or file is None:
        return form or DEFAULT_FORM
    by_ending = form_of(file)
    if by_ending is None and file.suffix:
        raise click.UsageError(
            f"--output: unknown output format: {plain(file.suffix)} files. Known endings: {', '.join(ENDINGS)}; "
            "or say --output-format."
        )
    return by_ending or DEFAULT_FORM


def must_not_overwrite(file: Path | None, sources: Iterable[str]) -> None:
    """Refuse a file that is one of the input logs, by whatever name."""
    if file is None or not file.is_file():
        return
    for source in sources:
        if os.path.isfile(source) and os.path.samefile(file, source):  # noqa: PTH113, PTH121 - may be a run's id
            raise SettingsError(
                f"--output {file} is one of the input logs and would be overwritten. Choose another file."
            )
