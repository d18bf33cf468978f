"""A real `mlflow server` on this machine, ended with everything that it started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def mlflow_server(folder: Path, store_uri: str) -> Iterator[str]:
    """The address of a server in front of `store_uri` that takes artifacts itself."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", store_uri, "--artifacts-destination", str(folder / "artifacts")]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_until_healthy(url, server, folder / "server.log")
        yield url
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait_until_healthy(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 120
    while not _healthy(url):
        if server.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"mlflow server did not come up:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)


def _healthy(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/health", timeout=1).read()
    except OSError:
        return False
    return True
