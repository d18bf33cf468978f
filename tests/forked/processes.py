"""Starts scripts as processes; those that are known before are forked from one that has loaded torch.

In: a command line, an environment, a directory. Out: a process, as `subprocess.Popen` has it. To load torch takes two
to four seconds of CPU, and a process of a test trains for one: inside `loaded(...)`, what a script imports of torch is
loaded once, and a fork runs the script. There are two to fork from, which take turns, so that the ranks of a training
have different hash seeds, as they have outside.
"""

from __future__ import annotations

import ast
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Protocol

HERE = Path(__file__).parent
SERVERS = 2
STARTS_WITHIN = 120.0
"""So many seconds the modules may take to load."""


class Process(Protocol):
    """What tests ask of a process."""

    pid: int

    @property
    def returncode(self) -> int | None:
        """How it ended, if it has."""

    def poll(self) -> int | None:
        """The same, asked now."""

    def wait(self, timeout: float | None = None) -> int:
        """The same, once it has."""

    def communicate(self, input: None = None, timeout: float | None = None) -> tuple[str, str]:  # noqa: A002
        """What it printed, once it has ended."""

    def kill(self) -> None:
        """End it."""


class ForkServer:
    """One process that has loaded what a script imports of torch."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from fork_server import serve; exec(serve())", str(theirs.fileno()), *modules],
                env={**os.environ, "PYTHONPATH": str(HERE)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._ended: dict[int, int] = {}

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], directory: str, printed: IO[bytes] | None
    ) -> ForkedProcess:
        """A fork that runs this script."""
        request = {"command": list(command), "environment": dict(environment), "directory": directory}
        own = [tempfile.TemporaryFile() for _ in range(2 if printed is None else 0)]  # noqa: SIM115 - read at its end
        files = [each.fileno() for each in own] if printed is None else [printed.fileno()] * 2
        socket.send_fds(self._channel, [json.dumps(request).encode()], files)
        started = None
        until = time.monotonic() + STARTS_WITHIN
        while started is None:
            started = self._listen(until - time.monotonic())
        return ForkedProcess(started, self, own)

    def code_of(self, pid: int, seconds: float | None) -> int | None:
        """How this process ended; None where it has not after so many seconds."""
        until = None if seconds is None else time.monotonic() + seconds
        while pid not in self._ended:
            left = None if until is None else until - time.monotonic()
            try:
                self._listen(left if left is None else max(0.0, left))
            except (TimeoutError, BlockingIOError):
                return None
        return self._ended[pid]

    def close(self) -> None:
        """End it, and all forks that are left."""
        self._channel.close()
        self._process.wait(STARTS_WITHIN)

    def _listen(self, seconds: float | None) -> int | None:
        """Take in one message; gives the number of a process that has started."""
        self._channel.settimeout(seconds)
        said = self._channel.recv(1 << 12)
        if not said:
            raise RuntimeError(f"the process that scripts are forked from has ended: {self._process.wait()}")
        message = json.loads(said)
        if "started" in message:
            return int(message["started"])
        self._ended[message["ended"]] = message["code"]
        return None


class ForkedProcess:
    """One script."""

    def __init__(self, pid: int, server: ForkServer, files: Sequence[IO[bytes]]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server, self._files, self._texts = server, files, ("", "")

    def poll(self) -> int | None:
        """How it ended, if it has."""
        return self._ask(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """How it ended, once it has."""
        code = self._ask(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def communicate(self, input: None = None, timeout: float | None = None) -> tuple[str, str]:  # noqa: A002
        """What it printed, once it has ended."""
        self.wait(timeout)
        return self._texts

    def kill(self) -> None:
        """End it."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _ask(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.code_of(self.pid, seconds)
            if self.returncode is not None:
                texts = [*map(_text_of, self._files), "", ""]
                self._texts = texts[0], texts[1]
        return self.returncode


def _text_of(file: IO[bytes]) -> str:
    with file:
        file.seek(0)
        return file.read().decode()


_servers: dict[str, Iterator[ForkServer]] = {}


@contextmanager
def loaded(*scripts: Path, modules: Sequence[str] = ()) -> Iterator[None]:
    """Inside, these scripts are forked from processes that have loaded torch, what they import of it, and `modules`."""
    with ExitStack() as ending:
        for script in scripts if sys.platform == "linux" else ():
            servers = [ForkServer(["torch", *torch_modules(script), *modules]) for _ in range(SERVERS)]
            for each in servers:
                ending.callback(each.close)
            _servers[str(script)] = itertools.cycle(servers)
            ending.callback(_servers.pop, str(script))
        yield


def start(
    script: Path,
    *arguments: str,
    environment: Mapping[str, str],
    directory: Path | None = None,
    printed: IO[bytes] | None = None,
    python: str = sys.executable,
) -> Process:
    """A process that runs this script, in a session of its own; ``printed``: where all goes that it prints."""
    place = str(directory or Path.cwd())
    servers = _servers.get(str(script)) if python == sys.executable else None
    if servers is not None:
        return next(servers).start([str(script), *arguments], environment, place, printed)
    return subprocess.Popen(
        [python, str(script), *arguments],
        env=dict(environment),
        cwd=place,
        stdin=subprocess.DEVNULL,
        stdout=printed or subprocess.PIPE,
        stderr=subprocess.STDOUT if printed else subprocess.PIPE,
        start_new_session=True,
        text=True,
    )


def torch_modules(script: Path) -> list[str]:
    """The modules of torch that a script imports when it begins."""
    found: list[str] = []
    for node in ast.parse(script.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            found += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.append(node.module)
    return [each for each in dict.fromkeys(found) if each.split(".")[0] == "torch"]
