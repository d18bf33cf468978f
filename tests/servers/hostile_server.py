"""A tracking server that answers as MLflow's does, and lists and sends what it likes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from servers.local_server import LocalServer

RUN_ID = "0123456789abcdef" * 2
_ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"
_ROOT = f"0/{RUN_ID}/artifacts"
_METRICS = [{"key": "stability/loss/loss", "value": 1.0, "timestamp": 1_700_000_000_000, "step": 1}]


class HostileServer(LocalServer):
    """Has one run; `files` are its artifacts by path."""

    def __init__(
        self, files: Mapping[str, bytes], listings: Mapping[str, Sequence[tuple[str, bool]]], sends: bytes = b"hostile"
    ) -> None:
        super().__init__(_Handler)
        self.files = files
        self.listings = listings
        """What it lists in folders, in place of the files there: paths, and whether each is a folder."""
        self.sends = sends
        """The content of any other file that it is asked for."""
        self.sent: list[str] = []
        """The paths of the files that it sent."""

    def listing(self, folder: str) -> list[tuple[str, bool]]:
        if folder in self.listings:
            return list(self.listings[folder])
        start = f"{folder}/" if folder else ""
        below = {path.removeprefix(start).partition("/")[::2] for path in self.files if path.startswith(start)}
        return sorted((name, bool(rest)) for name, rest in below)


class _Handler(BaseHTTPRequestHandler):
    server: HostileServer

    def _handle(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = urlsplit(self.path)
        path = unquote(asked.path)
        if path.endswith("/experiments/search"):
            self._answer({"experiments": [{"experiment_id": "0", "name": "Default", "lifecycle_stage": "active"}]})
        elif path.endswith("/runs/get"):
            self._answer({"run": _run()})
        elif path.endswith("/logged-models/search"):
            self._answer({"models": []})
        elif path.endswith("/metrics/get-history"):
            self._answer({"metrics": _METRICS})
        elif path == _ARTIFACTS:
            folder = parse_qs(asked.query)["path"][0].removeprefix(_ROOT).lstrip("/")
            listed = [{"path": name, "is_dir": is_folder} for name, is_folder in self.server.listing(folder)]
            self._answer({"files": listed})
        elif path.startswith(f"{_ARTIFACTS}/"):
            name = path.removeprefix(f"{_ARTIFACTS}/{_ROOT}/")
            self.server.sent.append(name)
            self._send(200, "application/octet-stream", self.server.files.get(name, self.server.sends))
        else:
            self._send(404, "application/json", b'{"error_code": "ENDPOINT_NOT_FOUND", "message": "no"}')

    do_GET = do_POST = _handle  # noqa: N815 - as the library calls them

    def _answer(self, content: Any) -> None:
        self._send(200, "application/json", json.dumps(content).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *what: object) -> None:
        """Say nothing."""


def _run() -> dict[str, Any]:
    info = {
        "run_id": RUN_ID,
        "run_uuid": RUN_ID,
        "run_name": "bait",
        "experiment_id": "0",
        "status": "FINISHED",
        "start_time": 1_700_000_000_000,
        "end_time": 1_700_000_100_000,
        "artifact_uri": f"mlflow-artifacts:/{_ROOT}",
        "lifecycle_stage": "active",
    }
    return {
        "info": info,
        "data": {"metrics": _METRICS, "params": [], "tags": [{"key": "stability.version", "value": "1"}]},
    }
