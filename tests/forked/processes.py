"""Starts Python programs as processes; inside `forking()`, as forks of a process that has imported what they import.

Input: a command line, an environment, a working directory. Output: a process, as `subprocess.Popen` has it. Importing
torch and this package takes three seconds of CPU, MLflow two, and a program of a test runs for one. Modules of
trainings have two servers, used in turn, so that ranks have different hash seeds, as outside. Tests of how a process
starts do not use this file.
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
from typing import IO, Any, Protocol

from forked.fork_server import COURIERS, PYTHON, ROOM_FOR_COMMAND_LINE, launcher, program

HERE = Path(__file__).parent
INTERPRETER = sys.executable
SERVERS_OF_TRAININGS = 2
STARTS_WITHIN = 120.0
"""Longest time in seconds for the import of the modules."""
TRAINING = ("torch", "torch._dynamo", "mlflow_stability.session.autolog")
"""What each training imports; torch's first optimizer imports its compiler."""
DELIVERY = (
    "mlflow_stability.courier.deliver",
    "mlflow_stability.courier.conclusion",
    "mlflow_stability.figures.dashboard",
    "mlflow.store.tracking.sqlalchemy_store",
    "sqlalchemy.dialects.sqlite",
)
"""What couriers import."""
LARGE = ("lightning", "mlflow", "pandas", "torch", "torchvision", "transformers")
"""Packages that are imported once for all programs that import them at their top."""


class Process(Protocol):
    """What tests need of a process."""

    pid: int

    @property
    def returncode(self) -> int | None:
        """Exit code, once known."""

    def poll(self) -> int | None:
        """Exit code, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return the exit code."""

    def communicate(self, input: None = None, timeout: float | None = None) -> tuple[str, str]:  # noqa: A002
        """Wait for its end; return its output and errors."""

    def send_signal(self, sig: int) -> None:
        """Send it a signal, if it runs."""

    def kill(self) -> None:
        """End it."""


class RefusedError(Exception):
    """The server was started with other settings than the program asks for."""


class ForkServer:
    """A process that has imported some modules, and forks itself; itself a fork of `base`, where that is given."""

    def __init__(self, modules: Sequence[str], folder: Path, base: ForkServer | None = None) -> None:
        self.address = str(folder / f"server-{os.getpid()}-{time.monotonic_ns()}")
        command = ["-c", "from fork_server import serve; exec(serve())", self.address, *modules, ROOM_FOR_COMMAND_LINE]
        paths = filter(None, [str(HERE), os.environ.get("PYTHONPATH")])  # an empty one is the present directory
        own = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self.environment: Mapping[str, str] = own if base is None else base.environment  # so that it is not refused
        read_end, self._held = os.pipe()
        """The server ends with the second end of this pipe."""
        if base is None:
            self._process: Process = subprocess.Popen(
                [INTERPRETER, *command], env=self.environment, stdin=read_end, start_new_session=True
            )
        else:
            self._process = base.start(command, self.environment, str(Path.cwd()), {0: read_end, 1: 1, 2: 2})
        os.close(read_end)

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        directory: str,
        files: Mapping[int, int],
        read: Sequence[IO[bytes]] = (),
    ) -> ForkedProcess:
        """Run a program in a fork; `files`: its open files by their numbers; `read`: those that it prints to."""
        request: dict[str, Any] = {"command": list(command), "environment": dict(environment), "directory": directory}
        request |= {"numbers": list(files), "detached": False}
        connection = self.connect()
        socket.send_fds(connection, [json.dumps(request).encode()], list(files.values()))
        reply = json.loads(connection.recv(1 << 12) or "{}")
        if "pid" not in reply:
            connection.close()
            raise RefusedError(reply)
        return ForkedProcess(reply["pid"], connection, read)

    def close(self) -> None:
        """End the server and all forks that still run."""
        os.close(self._held)
        self._process.wait(STARTS_WITHIN)
        Path(self.address).unlink(missing_ok=True)

    def connect(self) -> socket.socket:
        """Connect, once the modules have been imported."""
        until = time.monotonic() + STARTS_WITHIN
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                connection.connect(self.address)
            except OSError:
                connection.close()
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"no fork server: {self._process.returncode}") from None
                time.sleep(0.02)
            else:
                return connection


class ForkedProcess:
    """A program that runs in a fork."""

    def __init__(self, pid: int, connection: socket.socket, files: Sequence[IO[bytes]]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.connection, self.files, self._texts = connection, files, ("", "")

    def poll(self) -> int | None:
        return self._ask(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ask(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def communicate(self, input: None = None, timeout: float | None = None) -> tuple[str, str]:  # noqa: A002
        self.wait(timeout)
        return self._texts

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ask(self, seconds: float | None) -> int | None:
        if self.returncode is None:
            self.connection.settimeout(seconds)
            try:
                reply = self.connection.recv(1 << 12)
            except (TimeoutError, BlockingIOError):
                return None
            self.connection.close()
            self.returncode = int(json.loads(reply)["code"]) if reply else -signal.SIGKILL
            texts = [*map(_text_of, self.files), "", ""]
            self._texts = texts[0], texts[1]
        return self.returncode


def _text_of(file: IO[bytes]) -> str:
    with file:
        file.seek(0)
        return file.read().decode()


class ForkServers:
    """The servers of a test session, started when first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ending = ExitStack()
        self._bases: dict[tuple[str, ...], list[ForkServer]] = {}
        self._turns: dict[tuple[str, ...], Iterator[ForkServer]] = {}
        self._programs: dict[tuple[str, ...], Path] = {}
        self._couriers: ForkServer | None = None

    def of(self, base: tuple[str, ...], more: tuple[str, ...] = ()) -> ForkServer:
        """A server that has imported these modules; one with `more` is a fork of one with the base alone."""
        if base not in self._bases:
            count = SERVERS_OF_TRAININGS if "torch" in base else 1
            self._bases[base] = [self._opened(base) for _ in range(count)]
        if base + more not in self._turns:
            servers = [self._opened(more, item) if more else item for item in self._bases[base]]
            self._turns[base + more] = itertools.cycle(servers)
        return next(self._turns[base + more])

    def program(self, base: tuple[str, ...], more: tuple[str, ...] = ()) -> Path:
        """The path of a program that runs as `python` does, in forks."""
        key = base + more
        if key not in self._programs:
            self._programs[key] = path = self._folder / f"python-{len(self._programs)}"
            training = str(path if key == TRAINING else self.program(TRAINING))
            addresses = [self.of(base, more).address for _ in range(SERVERS_OF_TRAININGS)]
            path.write_text(program(addresses, {COURIERS: self.of_couriers(), PYTHON: training}), encoding="utf-8")
            path.chmod(0o700)
        return self._programs[key]

    def of_couriers(self) -> str:
        """The address of the server of couriers."""
        if self._couriers is None:
            self._couriers = self.of(DELIVERY)
            self._couriers.connect().close()
        return self._couriers.address

    def close(self) -> None:
        self._ending.close()

    def _opened(self, modules: tuple[str, ...], base: ForkServer | None = None) -> ForkServer:
        server = ForkServer(modules, self._folder, base)
        self._ending.callback(server.close)
        return server

    def __fspath__(self) -> str:
        """As an argument of a command line: code of a launcher that has couriers forked."""
        return launcher(self.of_couriers())


_servers: ForkServers | None = None


@contextmanager
def forking(folder: Path) -> Iterator[ForkServers | None]:
    """Inside, programs are forked; `folder` is for sockets. None where this system cannot."""
    global _servers
    _servers = ForkServers(folder) if sys.platform == "linux" else None
    try:
        yield _servers
    finally:
        if _servers is not None:
            _servers.close()
        _servers = None


def python(base: tuple[str, ...] = TRAINING, *more: str) -> str:
    """The path of a program that runs as `sys.executable` does, and has imported these modules."""
    return str(_servers.program(base, more)) if _servers is not None else INTERPRETER


def start(
    script: Path | str,
    *arguments: str,
    environment: Mapping[str, str],
    directory: Path | None = None,
    printed: IO[bytes] | None = None,
    python: str = INTERPRETER,
    modules: Sequence[str] = TRAINING,
) -> Process:
    """Start a script, "-c" with code or "-m" with a module, in a session of its own.

    `printed`: where all output goes. `modules`: what is imported before; of a script, also the large packages that it
    imports at its top.
    """
    place = str(directory or Path.cwd())
    if _servers is not None and python == INTERPRETER:
        code = {"-c": arguments[:1], "-m": [""]}.get(str(script)) or [Path(script).read_text(encoding="utf-8")]
        own = [] if printed else [tempfile.TemporaryFile(), tempfile.TemporaryFile()]  # noqa: SIM115 - read at its end
        out, errors = own or [printed, printed]
        files = {1: out.fileno(), 2: errors.fileno()}
        around = {COURIERS: _servers.of_couriers(), PYTHON: str(_servers.program(TRAINING)), **environment}
        server = _servers.of(tuple(modules), tuple(large_modules(*code)))
        try:
            return server.start([str(script), *arguments], around, place, files, own)
        except RefusedError:
            for process in own:
                process.close()
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


def large_modules(text: str) -> list[str]:
    """The modules of large packages that a program imports at its top."""
    lines: list[str] = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            lines += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            lines.append(node.module)
    return [fromkey for fromkey in dict.fromkeys(lines) if fromkey.split(".")[0] in LARGE]
