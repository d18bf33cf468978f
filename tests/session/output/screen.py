"""A terminal of 80 columns, and what a person sees on it."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyte
import pytest

ROWS, COLUMNS = 60, 80


class ShownTerminal:
    """What is written to a pseudo-terminal, drawn by a terminal emulator."""

    def __init__(self) -> None:
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._master, self.descriptor = pty.openpty()
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                text = os.read(self._master, 4096)
            except OSError:  # the other end was closed
                return
            self._stream.feed(text)

    def rows(self) -> list[str]:
        """The rows that are not empty, when everything was written; to be called once."""
        os.close(self.descriptor)
        self._reader.join(10)
        os.close(self._master)
        return [row.rstrip() for row in self._screen.display if row.strip()]


@contextmanager
def shown_terminal(patch: pytest.MonkeyPatch) -> Iterator[ShownTerminal]:
    """Have this process's stdout and stderr go to a terminal."""
    patch.setenv("TERM", "xterm-256color")
    patch.delenv("NO_COLOR", raising=False)
    terminal = ShownTerminal()
    streams = [os.fdopen(os.dup(terminal.descriptor), "w", buffering=1) for _ in range(2)]
    with patch.context() as patched:
        for name, stream in zip(("stdout", "stderr"), streams, strict=True):
            patched.setattr(sys, name, stream)
        yield terminal
    for stream in streams:
        stream.close()
