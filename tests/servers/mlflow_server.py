"""A real `mlflow server` on this machine, ended with everything that it started."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from servers.ports import free_port


@contextmanager
def mlflow_server(
    folder: Path,
    store_uri: str,
    artifacts: str | None = None,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    workers: int = 1,
    tls: ssl.SSLContext | None = None,
) -> Iterator[str]:
    """The address of a server in front of `store_uri` that takes artifacts itself.

    `options` are more arguments of `mlflow server`; `tls` is what a client trusts where those make it speak TLS.
    """
    port = free_port()
    url = f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", str(workers), "--backend-store-uri", store_uri]
    command += ["--artifacts-destination", artifacts or str(folder / "artifacts"), *options]
    settings = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **settings, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        _wait_until_healthy(url, server, folder / "server.log", tls)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait_until_healthy(
    url: str, server: subprocess.Popen[bytes], log: Path, tls: ssl.SSLContext | None = None
) -> None:
    until = time.monotonic() + 120
    while not answers(f"{url}/health", tls):
        if server.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"mlflow server did not come up:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)


def answers(url: str, tls: ssl.SSLContext | None = None) -> bool:
    """Whether something answers with 200 there."""
    try:
        urllib.request.urlopen(url, timeout=1, context=tls).read()
    except OSError:
        return False
    return True
