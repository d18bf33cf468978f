"""A PostgreSQL server in a directory of its own, from Debian's package."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers.ports import free_port
from waiting import wait_until

USER = "postgres"
"""PostgreSQL refuses to run as root; the package makes this user."""


def programs() -> Path | None:
    """The folder of the newest version that Debian's packages installed, out of PATH; None where there is none."""
    result = Path("/usr/lib/postgresql").glob("*/bin/pg_ctl")
    return max((path.parent for path in result), key=lambda path: int(path.parent.name), default=None)


def why_not() -> str:
    """Why no server can be started here; empty where one can."""
    if programs() is None:
        return "PostgreSQL is not installed (Debian: apt-get install postgresql)"
    if os.geteuid() == 0 and USER not in {item.pw_name for item in pwd.getpwall()}:
        return f"PostgreSQL does not run as root, and there is no user {USER}"
    return ""


@contextmanager
def postgres() -> Iterator[str]:
    """The SQLAlchemy URI of an empty database on a fresh server, which is gone afterwards."""
    binaries = programs()
    assert binaries is not None
    user = USER if os.geteuid() == 0 else None
    # Not below a test's own folder: that is closed to other users.
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    if user is not None:
        shutil.chown(folder, user)
    data, port = folder / "data", free_port()
    try:
        make = [binaries / "initdb", "-D", data, "-U", "mlflow", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(make, user=user, cwd=folder, check=True, capture_output=True)
        # No durability: nothing is kept, and disks of test machines are slow to sync.
        options = ["-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=300"]
        options += ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={folder}"]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [binaries / "postgres", "-D", data, "-p", str(port), *options],
                user=user,
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            ready = [binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
            wait_until(lambda: subprocess.run(ready, check=False).returncode == 0, 60, (folder / "log").read_text)
            yield f"postgresql+psycopg://mlflow@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown, which takes its workers along
            server.wait(60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
