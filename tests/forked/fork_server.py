"""Loads modules once, and gives a fork of itself to each script that is asked for.

In: modules to load, and over a socket one request for each script: its command line, environment and directory, with
the files that its output goes to. Out: the code of a script, in a new process that is as `python SCRIPT` would have it;
over the socket the number of each process, and how it ended. When whoever asked has gone, all processes go as well.

Started as `python -c "from fork_server import serve; exec(serve())"`, so that a script is `__main__` and ends as one.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import sys
from pathlib import Path
from types import CodeType
from typing import Any

LARGEST = 1 << 17
"""Bytes of a request: the environment is most of it."""


def serve() -> CodeType:
    """Comes back in forks only, each with the code that it is to run."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # what is loaded stays: no fork looks through it, or copies it
    ended, wakes = os.pipe()
    for end in (ended, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    while True:
        ready, _, _ = select.select([channel, ended], [], [])
        if ended in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(ended, 4096)
            _tell_who_ended(channel, children)
        if channel in ready:
            said, files, _, _ = socket.recv_fds(channel, LARGEST, 2)
            if not said:
                for child in children:
                    os.kill(child, signal.SIGKILL)
                os._exit(0)
            request = json.loads(said)
            child = os.fork()
            if child == 0:
                for each in (channel.detach(), ended, wakes):
                    os.close(each)
                return _became(request, files)
            children.add(child)
            for each in files:
                os.close(each)
            channel.send(json.dumps({"started": child}).encode())


def _tell_who_ended(channel: socket.socket, children: set[int]) -> None:
    for child in list(children):
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            children.discard(child)
            channel.send(json.dumps({"ended": child, "code": os.waitstatus_to_exitcode(status)}).encode())


def _became(request: dict[str, Any], files: list[int]) -> CodeType:
    """Make of this fork what `python SCRIPT` would have begun with."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for stream, file in enumerate(files, 1):
        os.dup2(file, stream)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    script, *_ = sys.argv = request["command"]
    sys.orig_argv = [sys.executable, *sys.argv]
    paths = os.environ.get("PYTHONPATH", "")
    here = str(Path(__file__).parent)
    sys.path[:] = [str(Path(script).parent), *filter(None, paths.split(os.pathsep)), *_without(sys.path, here)]
    random.seed()
    for name in ("numpy", "torch"):
        if name in sys.modules:
            sys.modules[name].random.seed()
    del sys.modules[__name__]
    main: Any = sys.modules["__main__"]
    del main.serve
    main.__file__ = script
    return compile(Path(script).read_bytes(), script, "exec")


def _without(paths: list[str], here: str) -> list[str]:
    return [each for each in paths if each not in ("", here)]
