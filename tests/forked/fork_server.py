"""A process that imports modules once and forks itself for each Python program that is asked for.

Input: the modules to import, and requests over a Unix socket: command line, environment, working directory and open
files. Output: for each request a process that runs as `python COMMAND` would; its pid and exit code go back over the
connection. A connection that closes ends its process, unless the request says that the process is detached. The end of
the standard input ends the server and all its processes.

Started as `python -c "from fork_server import serve; exec(serve())" ...`, so that a script is `__main__`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import random
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import CodeType
from typing import Any

LARGEST = 1 << 17
"""Largest request in bytes; most of it is the environment."""
MOST_FILES = 32
"""Largest number of open files in a request."""
LINK = "mlflow_stability.session.courier_link"
"""Module that starts couriers."""
COURIERS = "FORKED_COURIERS"
"""Environment variable: the socket of the server from which couriers are forked."""
AT_START = ("PYTHON", "MLFLOW_", "_MLFLOW_", "SQLALCHEMY_", "TORCH", "OMP_")
LATER = (
    *("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONHASHSEED", "PYTHONIOENCODING", "OMP_NUM_THREADS"),
    *("MLFLOW_STABILITY_", "MLFLOW_TRACKING_", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_", "MLFLOW_HTTP_REQUEST_"),
    *("MLFLOW_S3_", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING"),
    *("TORCHELASTIC_", "TORCH_NCCL_"),
    "_MLFLOW_LIGHTNING_AUTOLOGGING_TMP_DIR",  # which MLflow sets in a test that logs a fit of Lightning
)
"""Beginnings of those of these variables that are read later, or that all servers are started with."""
PYTHON = "FORKING_PYTHON"
"""Environment variable: the program that `sys.executable` is in forks."""
_PYTHON = sys.executable
ASK = Path(__file__).with_name("ask.py")
_OWN_PATHS = ["", *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
ROOM_FOR_COMMAND_LINE = "x" * 2000
"""Last argument of a server: its forks write their own command lines over it."""


def launcher(address: str) -> str:
    """Code that starts the courier in `sys.argv[1:]` through a fork server."""
    return f"{ASK.read_text(encoding='utf-8')}\nlaunch({_PYTHON!r}, {address!r})\n"


def program(addresses: list[str], variables: dict[str, str]) -> str:
    """A program that runs `python COMMAND` in forks of these servers, with these variables in the environment."""
    return f"#!{_PYTHON} -IS\n{ASK.read_text(encoding='utf-8')}\nrun({_PYTHON!r}, {addresses!r}, {variables!r})\n"


def serve() -> CodeType:
    """Serve requests; return only in forks, with the code that each of them runs."""
    address, *modules = sys.argv[1:-1]
    began = dict(os.environ)
    for module in modules:
        importlib.import_module(module)
    if "sqlalchemy.orm" in sys.modules:
        sys.modules["sqlalchemy.orm"].configure_mappers()
    gc.collect()
    gc.freeze()  # no fork examines these objects, which would copy their memory
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen()
    ended, wakes = os.pipe()
    for end in (ended, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    processes: dict[int, socket.socket | None] = {}
    while True:
        asking = {value.fileno(): (pid, value) for pid, value in processes.items() if value is not None}
        ready, _, _ = select.select([listener, ended, 0, *asking], [], [])
        if 0 in ready:
            for pid in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            os._exit(0)
        for pid, connection in (asking[value] for value in ready if value in asking):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # nothing is sent after a request: the connection was closed
            connection.close()
            processes[pid] = None
        if ended in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(ended, 4096)
            _report_ended(processes)
        if listener in ready:
            connection, _ = listener.accept()
            text, files, _, _ = socket.recv_fds(connection, LARGEST, MOST_FILES)
            if not text:
                connection.close()
                continue
            request = json.loads(text)
            if other := _other_settings(request["environment"], began):
                connection.send(json.dumps({"refused": other}).encode())
                connection.close()
                for file in files:
                    os.close(file)
                continue
            pid = os.fork()
            if pid == 0:
                return _become(request, files, [listener, connection, *(item for _, item in asking.values())])
            for file in files:
                os.close(file)
            with contextlib.suppress(OSError):
                connection.send(json.dumps({"pid": pid}).encode())
            if request["detached"]:
                connection.close()
            processes[pid] = None if request["detached"] else connection


def _other_settings(wanted: dict[str, str], given: dict[str, str]) -> list[str]:
    """What Python, MLflow or torch reads at its start, and what this server had otherwise."""
    others = [
        name
        for name in wanted.keys() | given.keys()
        if name.startswith(AT_START) and not name.startswith(LATER) and wanted.get(name, "") != given.get(name, "")
    ]
    paths = filter(None, wanted.get("PYTHONPATH", "").split(os.pathsep))
    return others + [path for path in paths if Path(path, "sitecustomize.py").exists()]  # Python runs it at its start


def _report_ended(processes: dict[int, socket.socket | None]) -> None:
    for pid, connection in list(processes.items()):
        result, status = os.waitpid(pid, os.WNOHANG)
        if result:
            del processes[pid]
            if connection is not None:
                with connection, contextlib.suppress(OSError):
                    connection.send(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode())


def _become(request: dict[str, Any], files: list[int], sockets: Iterable[socket.socket]) -> CodeType:
    """Make this fork what `python COMMAND` is at its start; return the code of the command."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for process in sockets:
        process.close()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    above = max([100, *request["numbers"]]) + 1
    moved = [fcntl.fcntl(item, fcntl.F_DUPFD_CLOEXEC, above) for item in files]
    os.closerange(3, above)
    for file, number in zip(moved, request["numbers"], strict=True):
        os.dup2(file, number)
        os.close(file)
    for name in ("stdout", "stderr"):  # those of the server may be of another kind, such as a file for a pipe
        old = getattr(sys, name)
        plain = old.write_through  # PYTHONUNBUFFERED is set
        file = open(old.fileno(), "wb", 0 if plain else -1, closefd=False)  # noqa: SIM115
        lines = file.isatty() or name == "stderr"
        new = io.TextIOWrapper(file, "utf-8", old.errors, line_buffering=lines, write_through=plain)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["directory"])
    command = request["command"]
    if "multiprocessing.spawn" in sys.modules:
        import multiprocessing.process
        import multiprocessing.spawn

        multiprocessing.process.ORIGINAL_DIR = request["directory"]
        multiprocessing.spawn.set_executable(os.environ.get(PYTHON, sys.executable))
    _name_process([sys.executable, *command])
    random.seed()
    for name in ("numpy", "torch"):
        if name in sys.modules:
            sys.modules[name].random.seed()
    if (address := os.environ.get(COURIERS)) and (link := sys.modules.get(LINK)):
        link._LAUNCH = launcher(address)
    del sys.modules[__name__]
    del sys.modules["__main__"].__dict__["serve"]
    return _code_of(command)


def _code_of(command: list[str]) -> CodeType:
    """Set `sys.argv` and `sys.path` for this command line, and compile what it runs."""
    sys.executable = os.environ.get(PYTHON, sys.executable)
    sys.orig_argv = [sys.executable, *command]
    paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    installed = [value for value in sys.path if value not in _OWN_PATHS]
    main: Any = sys.modules["__main__"]
    if command[0] in ("-c", "-m"):
        sys.argv = ["-c", *command[2:]] if command[0] == "-c" else command[1:]
        first = ["" if command[0] == "-c" else str(Path.cwd())] * (not os.environ.get("PYTHONSAFEPATH"))
        text, name = command[1], "<string>"
        if command[0] == "-m":
            text = f"import runpy; runpy._run_module_as_main({text!r})"
    else:
        sys.argv = list(command)
        script = Path(command[0]).absolute()
        first, name = [str(script.parent.resolve())], command[0]
        main.__file__, text = str(script), script.read_text(encoding="utf-8")
    sys.path[:] = [*first, *paths, *installed]
    return compile(text, name, "exec")


def _name_process(command: list[str]) -> None:
    """Show this command line in `/proc/PID/cmdline`, as setproctitle does: the rest must not end with a zero."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    start, end = (int(fields[number - 3]) for number in (48, 49))
    shown = " ".join(command).encode()[: end - start - 1] + b"\0"
    ctypes.memmove(start, shown.ljust(end - start, b"x"), end - start)
