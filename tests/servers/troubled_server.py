"""A stand-in for a server in trouble: a real HTTP server in front of the real one, whose mood can be changed."""

from __future__ import annotations

import http.client
import json
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

from servers.local_server import LocalServer


class TroubledServer(LocalServer):
    """Passes requests on, unless `mood` says otherwise."""

    def __init__(self, behind: str, prefix: str = "", tls: ssl.SSLContext | None = None) -> None:
        super().__init__(_Handler)
        self.behind = urlsplit(behind).netloc
        self.prefix = prefix
        """A path in front of those of the server behind, as a reverse proxy has one for each of its servers."""
        self.scheme = "http"
        if tls is not None:
            self.scheme = "https"
            # The handshake is made by the thread of each connection: one that fails stops no other.
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.mood = "up"
        """`up`, `down` (hangs up without an answer), `failing` (answers 500) or `slow`."""
        self.slowness = 1.0
        """How many seconds every answer takes while it is slow."""
        self.refused_metric = ""
        """A metric key that it answers 400 to."""
        self.lose_answers_to = ""
        """A path of which requests are passed on, and the answer is lost, once."""
        self.silent_at = ""
        """How paths end of which requests are never answered."""
        self.down_after: int | None = None
        """Number of requests after which it is down."""
        self.requests: list[str] = []
        """The paths that were asked for."""

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}{self.prefix}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that refuse the certificate."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: TroubledServer

    def _handle(self) -> None:
        server = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        server.requests.append(self.path)
        if server.silent_at and urlsplit(self.path).path.endswith(server.silent_at):
            threading.Event().wait()
        if server.down_after is not None and len(server.requests) > server.down_after:
            server.mood = "down"
        if server.mood == "down":
            self.close_connection = True
            return
        if not self.path.startswith(f"{server.prefix}/"):
            self._answer(404, {"Content-Type": "text/plain"}, b"nothing here")
            return
        if server.mood == "failing":
            self._answer(500, {"Content-Type": "text/plain"}, b"out of order")
            return
        if server.mood == "slow":
            time.sleep(server.slowness)
        if server.refused_metric and self.path.endswith("/runs/log-batch"):
            keys = [row["key"] for row in json.loads(body).get("metrics", [])]
            if server.refused_metric in keys:
                values = {"error_code": "INVALID_PARAMETER_VALUE", "message": f"no {server.refused_metric} here"}
                self._answer(400, {"Content-Type": "application/json"}, json.dumps(values).encode())
                return
        self._pass_on(body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _handle  # noqa: N815

    def _pass_on(self, body: bytes) -> None:
        connection = http.client.HTTPConnection(self.server.behind, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        try:
            path = self.path.removeprefix(self.server.prefix)
            connection.request(self.command, path, body, {**headers, "Host": self.server.behind})
            answer = connection.getresponse()
            records = answer.read()
        finally:
            connection.close()
        if self.server.lose_answers_to and self.path.endswith(self.server.lose_answers_to):
            self.server.lose_answers_to = ""
            self.close_connection = True
            return
        kept = {name: value for name, value in answer.getheaders() if name.lower() in ("content-type", "etag")}
        self._answer(answer.status, kept, records)

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Keep quiet."""
