"""Asks a fork server for a process: code of the courier's launcher, and of the program that tests start as `python`.

`fork_server.py` adds the call of `launch` or `run`. Where the server does not answer, or was started with settings that
a process would not have, the interpreter itself starts.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

FORWARDED = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]


def launch(python: str, address: str) -> None:
    """Start the courier whose command line this process was given, and leave it."""
    command = sys.argv[2:]
    _, pid = ask(address, command, dict(os.environ), is_detached=True)
    if not pid and os.fork() == 0:
        os.execv(python, [python, *command])


def run(python: str, addresses: list[str], variables: dict[str, str]) -> None:
    """Be `python` with the command line of this process: forward signals to the fork, and end as it ends."""
    command = sys.argv[1:]
    early: list[int] = []
    for item in FORWARDED:
        signal.signal(item, lambda number, _: early.append(number))
    # Ranks of a training have different hash seeds, as outside.
    address = addresses[int(os.environ.get("RANK") or os.getpid()) % len(addresses)]
    can_fork = command[:1] in (["-c"], ["-m"]) or (command and command[0][0] != "-")
    connection, pid = ask(address, command, {**variables, **os.environ}) if can_fork else (None, 0)
    if connection is None or not pid:
        for item in FORWARDED:
            signal.signal(item, signal.SIG_DFL)
        os.execv(python, [python, *command])
    for item in FORWARDED:
        signal.signal(item, lambda number, _: os.kill(pid, number))
    for number in early:
        os.kill(pid, number)
    for file in open_files():
        if file not in (2, connection.fileno()):
            os.close(file)  # whoever reads what the fork writes sees the end of it
    reply = connection.recv(1 << 12)
    code = json.loads(reply)["code"] if reply else -signal.SIGKILL
    if code < 0:
        if -code in FORWARDED:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def ask(
    address: str, command: list[str], environment: dict[str, str], *, is_detached: bool = False
) -> tuple[socket.socket, int]:
    """The connection to the server, and the pid of the new process: 0 without one."""
    numbers = open_files()
    request = {"command": command, "environment": environment, "numbers": numbers, "detached": is_detached}
    request["directory"] = os.getcwd()  # noqa: PTH109 - imports little
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(request).encode()], numbers)
        return connection, json.loads(connection.recv(1 << 12) or "{}").get("pid", 0)
    except OSError:
        return connection, 0


def open_files() -> list[int]:
    """The numbers of the files that this process has open."""
    return [item for item in map(int, os.listdir("/proc/self/fd")) if is_open(item)]  # noqa: PTH208


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
