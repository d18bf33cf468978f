"""Targets that break each promise on purpose, so that tests see whether it is noticed."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
from pathlib import Path
from random import Random

from fuzz.target import Drawn, Target, written


def targets() -> dict[str, Target]:
    """Return one target for each promise, and one that keeps them all."""
    checks = {
        "sound": _sound,
        "raises": _raise,
        "hangs": _hang,
        "takes_memory": lambda *_: bool(bytearray(8 * 1024**3)),
        "writes_outside": lambda _, folder: bool((folder.parent.parent / "harm").write_text("x")),
        "removes_outside": lambda _, folder: bool(os.remove(folder.parent.parent / "harm")),  # noqa: PTH107
        "starts_a_process": lambda *_: bool(subprocess.run(["true"], check=False)),
        "connects": lambda *_: bool(socket.create_connection(("127.0.0.1", 9), 1)),
        "unpickles": lambda drawn, _: bool(pickle.loads(drawn.content)),
        "runs_code": lambda *_: bool(exec("1 + 1")),
        "hides_it": _hide,
        "dies": lambda *_: os._exit(3),
    }
    return {name: Target(10, _drawn, check) for name, check in checks.items()}


def _drawn(rng: Random) -> Drawn:
    return Drawn("input", b"cos\nsystem\n(S'true %d'\ntR." % rng.randrange(9))


def _sound(drawn: Drawn, folder: Path) -> bool:
    return written(drawn, folder).read_bytes() == drawn.content


def _raise(*_: object) -> bool:
    raise KeyError("undocumented")


def _hang(*_: object) -> bool:
    while True:
        pass


def _hide(_drawn: Drawn, folder: Path) -> bool:
    try:
        (folder.parent.parent / "harm").write_text("x")
    except BaseException:
        return True
    return True
