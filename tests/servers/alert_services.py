"""Real servers of this machine that play Slack, Discord, PagerDuty, a webhook and a mail server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import Message
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller

HANG = -1
"""In place of a status: never answer."""


@dataclass
class Request:
    path: str
    body: Any
    status: int
    time: float = field(default_factory=time.time)


def _nothing() -> None:
    """Nothing happens around an answer."""


class ChatServer:
    """Takes what is posted to it, and answers as it was set to."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answers: list[int] = []
        """The next statuses; 200 when there are none left."""
        self.before_answer: Callable[[], None] = _nothing
        self.after_answer: Callable[[], None] = _nothing
        """Called around each answer, by the thread that gives it."""
        self._released = threading.Event()
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = served.answers.pop(0) if served.answers else 200
                is_json = "json" in self.headers.get("Content-Type", "")
                served.requests.append(Request(self.path, json.loads(body) if is_json else body, status))
                if status == HANG:
                    served._released.wait(60)
                    return
                served.before_answer()
                # Slack says "ok", Opsgenie the id of a request. PagerDuty and Opsgenie answer 202, Discord 204 or 200.
                answer = b"ok" if "services" in self.path else b'{"status": "success", "requestId": "1"}'
                accepts_later = "enqueue" in self.path or "/alerts" in self.path
                self.send_response(202 if status == 200 and accepts_later else status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
                self.wfile.flush()
                served.after_answer()

            def log_message(self, *_: Any) -> None:
                """Nothing on stderr."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def taken(self) -> list[Request]:
        """What was answered well."""
        return [request for request in self.requests if request.status == 200]

    def __enter__(self) -> ChatServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class MailServer:
    """Takes mail, and keeps it."""

    def __init__(self, port: int) -> None:
        self.mails: list[Message] = []
        self._controller = Controller(self, hostname="127.0.0.1", port=port)

    async def handle_DATA(self, server: object, session: object, envelope: Any) -> str:  # noqa: N802
        self.mails.append(BytesParser().parsebytes(envelope.content))
        return "250 OK"

    def __enter__(self) -> MailServer:
        self._controller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()


def text_of(mail: Message) -> str:
    """The plain text of a mail."""
    for part in mail.walk():
        if part.get_content_type() in ("text/plain", "text/html"):
            return bytes(part.get_payload(decode=True)).decode()  # type: ignore[arg-type]
    raise AssertionError("a mail without a text")
