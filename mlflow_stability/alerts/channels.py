"""Send messages: by URL through apprise, or to the console of the training.

Guarantees: neither a URL nor a part of it is in an error or a log; services that accept a key for each alert get the
same one when an alert is sent again, and merge the two.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from mlflow_stability.alerts.alert import CONSOLE, INSTALL_ALERTS
from mlflow_stability.alerts.message import AlertMessage
from mlflow_stability.errors import StabilityError
from mlflow_stability.vocabulary.result import Severity


def new_row_prefix(descriptor: int) -> str:
    """Return what to write before a line so that it begins in a row of its own; empty where this is no terminal.

    A row of spaces ends in the same row only if it began at the left edge: a progress bar or an unfinished line stays,
    and no empty row is left behind. zsh does the same before its prompt.
    """
    try:
        columns = os.get_terminal_size(descriptor).columns
    except OSError:  # a file or a pipe
        return ""
    return "" if os.environ.get("TERM", "dumb") == "dumb" else f"{' ' * columns}\r"


class ChannelError(StabilityError):
    """A message was not sent; the text says why, without the channel's address."""


def console_file() -> str:
    """Return the path of this process's standard error, if it is a terminal or a file; else empty."""
    try:
        if os.isatty(2):
            return os.ttyname(2)
        if stat.S_ISREG(os.fstat(2).st_mode):
            return str(Path("/proc/self/fd/2").readlink())
    except OSError:  # closed, or a system without /proc
        return ""
    return ""


class ConsoleChannel:
    """The console of the training, which the courier opens only while it writes.

    Where it is a pipe, the training passes the message on instead: a courier that kept a pipe open would keep its
    reader waiting.
    """

    name = "console"

    def __init__(self, path: str, relay: Callable[[str], None]) -> None:
        self._path = path
        self._relay = relay  # asks the training to print a text

    def send(self, message: AlertMessage) -> None:
        text = f"mlflow-stability alert: {message.title}\n{message.text()}"
        if not self._path:
            self._relay(text)
            return
        try:
            console = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(console, f"{new_row_prefix(console)}{text}\n".encode(errors="replace"))
            finally:
                os.close(console)
        except OSError as error:
            raise ChannelError(f"{self._path}: {error.strerror or error}") from error


_TYPES = {Severity.INFO: "info", Severity.WARNING: "warning", Severity.CRITICAL: "failure"}
"""Severities in apprise; services turn them into colours, icons and priorities."""
_APP = "mlflow-stability"  # sender of messages
_MIN_SECRET_LENGTH = 4
_KEYS = {"NotifyPagerDuty": "dedup", "NotifyOpsgenie": "alias", "NotifyJira": "alias"}
"""Attribute of the key that identifies an alert, by apprise's name of the service."""
_PRIORITIES = {Severity.INFO: 5, Severity.WARNING: 3, Severity.CRITICAL: 1}
"""P1 is the highest; apprise sends P3 whatever the severity is."""
_WITH_PRIORITY = ("NotifyOpsgenie", "NotifyJira")


class AppriseChannel:
    """One URL for Slack, Discord, PagerDuty, Teams, e-mail, webhooks or any other service of apprise."""

    def __init__(self, url: str) -> None:
        try:
            import apprise
        except ImportError as error:
            raise ChannelError(f"Alerts to a URL need apprise: {INSTALL_ALERTS}.") from error
        scheme = url.partition("://")[0].lower()
        with _captured_log():
            asset = apprise.AppriseAsset(app_id=_APP, app_desc=_APP, image_url_mask="", image_url_logo="")
            service: Any = apprise.Apprise.instantiate(url, asset=asset)
        if service is None:
            raise ChannelError(f"apprise does not accept the {scheme}:// URL. Compare it with apprise's documentation.")
        self.name = str(service.service_name or scheme)
        self._service = service
        self._key = _KEYS.get(type(service).__name__, "")
        if not hasattr(service, self._key) or getattr(service, self._key):  # an older apprise; or the user has set one
            self._key = ""
        in_url = "priority" in parse_qs(url.partition("?")[2])
        self._has_priority = type(service).__name__ in _WITH_PRIORITY and hasattr(service, "priority") and not in_url
        tokens = service.template_tokens if type(service).__name__ == "NotifyPagerDuty" else {}
        self._names = {  # that the URL does not set
            name
            for name in ("source", "component")
            if name in tokens and getattr(service, name, None) == tokens[name].get("default")
        }
        parts = re.split(r"[/?&=:@#,\s]+", url.partition("://")[2])
        self._secrets = sorted((part for part in parts if len(part) >= _MIN_SECRET_LENGTH), key=len, reverse=True)

    def send(self, message: AlertMessage) -> None:
        if self._key:
            setattr(self._service, self._key, message.key)
        if self._has_priority:
            self._service.priority = _PRIORITIES[message.severity]
        run = message.run
        about = {"source": socket.gethostname(), "component": (run.name or run.run_id) if run is not None else _APP}
        for name in self._names:
            setattr(self._service, name, about[name])
        with _captured_log() as log:
            try:
                sent = self._service.notify(  # `Apprise.notify` would send from other threads
                    message.text(time.time()), message.title, _TYPES[message.severity], body_format="text"
                )
            except Exception as error:  # apprise has over a hundred services
                raise ChannelError(self._without_secrets(f"{type(error).__name__}: {error}")) from None
        if not sent:
            raise ChannelError(self._without_secrets(" ".join(" ".join(log).split())) or "not accepted")

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text[:300]


class _Capture(logging.Filter):
    """Keeps what apprise logs in threads that send out of all logs, because its messages may hold the URL."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[int | None, list[str]] = {}  # by thread

    def filter(self, record: logging.LogRecord) -> bool:
        lines = self.lines.get(record.thread)
        if lines is not None and record.levelno >= logging.WARNING:
            lines.append(record.getMessage())
        return lines is None


_capture = _Capture()


@contextmanager
def _captured_log() -> Iterator[list[str]]:
    """Capture what apprise logs in this thread."""
    logging.getLogger("apprise").addFilter(_capture)  # once, however often it is added
    thread = threading.get_ident()
    lines = _capture.lines[thread] = []
    try:
        yield lines
    finally:
        del _capture.lines[thread]


Channel = ConsoleChannel | AppriseChannel


def open_channel(address: str, console: str, relay: Callable[[str], None]) -> Channel:
    """Open the channel of a URL, or of ``console``; `ChannelError` where apprise does not accept it.

    `console`: path of the training's console, if it can be opened. `relay` asks the training to print a text there.
    """
    return ConsoleChannel(console, relay) if address == CONSOLE else AppriseChannel(address)
