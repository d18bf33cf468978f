"""A server that is no MLflow server: it answers everything alike."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class SameAnswer(ThreadingHTTPServer):
    """Answers with one status and one body, whatever it is asked."""

    daemon_threads = True

    def __init__(self, status: int, kind: str, body: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.kind, self.body = status, kind, body

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> SameAnswer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *what: object) -> None:
        self.shutdown()
        self.server_close()


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
