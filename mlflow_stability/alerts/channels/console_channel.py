"""The console of the training, written to by the courier: also after the training was killed.

The courier has no console. It opens the terminal or the file that the training writes its errors to, and only while it
writes. Where that is a pipe, the training passes the message on instead: a courier that kept a pipe open would keep
whoever reads it waiting.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from mlflow_stability.alerts.channels.channel import ChannelError
from mlflow_stability.alerts.message import AlertMessage
from mlflow_stability.vocabulary.text import to_new_row


def console_file() -> str:
    """The path of this process's standard error, if it is a terminal or a file; empty otherwise."""
    try:
        if os.isatty(2):
            return os.ttyname(2)
        if stat.S_ISREG(os.fstat(2).st_mode):
            return str(Path("/proc/self/fd/2").readlink())
    except OSError:  # closed, or a system without /proc
        return ""
    return ""


class ConsoleChannel:
    """The console."""

    name = "console"

    def __init__(self, path: str, relay: Callable[[str], None]) -> None:
        self._path = path
        self._relay = relay
        """Has the training say it."""

    def send(self, message: AlertMessage) -> None:
        """Write it as a few lines."""
        text = f"mlflow-stability alert: {message.title}\n{message.text()}"
        if not self._path:
            self._relay(text)
            return
        try:
            console = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(console, f"{to_new_row(console)}{text}\n".encode(errors="replace"))
            finally:
                os.close(console)
        except OSError as error:
            raise ChannelError(f"{self._path}: {error.strerror or error}") from error
