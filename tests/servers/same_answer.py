"""A server that is no MLflow server: it answers everything alike."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler

from servers.local_server import LocalServer


class SameAnswer(LocalServer):
    """Answers with one status and one body, whatever it is asked."""

    def __init__(self, status: int, kind: str, body: bytes) -> None:
        super().__init__(_Handler)
        self.status, self.kind, self.body = status, kind, body


class _Handler(BaseHTTPRequestHandler):
    server: SameAnswer

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(self.server.status)
        self.send_header("Content-Type", self.server.kind)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    do_GET = do_POST = _answer  # noqa: N815 - as the library calls them

    def log_message(self, *what: object) -> None:
        """Say nothing."""
