"""Puts a result where it was asked for: on a terminal, into a pipe, or into a file.

In: text, or what draws on a console. Out: colours and the like for a terminal; else bytes in UTF-8, whatever the
environment's own encoding. A reader that has enough, such as `head`, is no error, and no reader at all is none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from mlflow_stability.cli.terminal import result_console, speaks_unicode
from mlflow_stability.errors import SettingsError
from mlflow_stability.reports.pen import Pen, written


def present(draw: Callable[[Pen], None], *, verbose: bool = False) -> None:
    """Show a person the result: with colours on a terminal, as plain text of its width in a pipe."""
    out = result_console()
    unicode = speaks_unicode(out)
    if out.is_terminal:
        draw(Pen(out, unicode=unicode, verbose=verbose))
    else:
        put_out(written(lambda console: draw(Pen(console, unicode=unicode, verbose=verbose)), out.width))


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
