"""Ports that nothing else on this machine takes between the choice and the use.

What binds to port 0 (gloo, HTTP servers, other tests) is given one of the kernel's ephemeral ports, so these are below
them; each process of a test run takes its own, one after the other.
"""

from __future__ import annotations

import itertools
import os
import random
import socket

_FIRST, _COUNT = 15_000, 15_000  # of Linux's ephemeral ports the first is 32768
_offsets = itertools.count(random.Random(f"{os.getpid()} {os.environ.get('PYTEST_XDIST_WORKER')}").randrange(_COUNT))


def free_port() -> int:
    """A port on which no process listens, and which this process has not given out before."""
    for offset in itertools.islice(_offsets, _COUNT):
        port = _FIRST + offset % _COUNT
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("each port that tests may use is taken")
