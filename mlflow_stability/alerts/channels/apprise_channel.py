"""Slack, Discord, PagerDuty, Teams, e-mail, webhooks and the rest of what apprise knows, by URL.

Guarantees: neither the URL nor a part of it is in an error or in a log; services that take a key for each alert get the
same one when an alert is sent again, and fold the two into one.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any
from urllib.parse import parse_qs

from mlflow_stability.alerts.alert import INSTALL
from mlflow_stability.alerts.channels.channel import ChannelError
from mlflow_stability.alerts.message import AlertMessage
from mlflow_stability.vocabulary.result import Severity

_TYPES = {Severity.INFO: "info", Severity.WARNING: "warning", Severity.CRITICAL: "failure"}
"""What apprise calls severities; services turn them into colours, icons and priorities."""
_US = "mlflow-stability"
"""Who a message is from."""
_SHORTEST_SECRET = 4
_KEYS = {"NotifyPagerDuty": "dedup", "NotifyOpsgenie": "alias", "NotifyJira": "alias"}
"""By apprise's name of a service, where it takes the key by which the service knows an alert again."""
_PRIORITIES = {Severity.INFO: 5, Severity.WARNING: 3, Severity.CRITICAL: 1}
"""P1 is the highest; apprise sends P3 whatever the severity is."""
_WITH_PRIORITY = ("NotifyOpsgenie", "NotifyJira")


class AppriseChannel:
    """One URL."""

    def __init__(self, url: str) -> None:
        try:
            import apprise
        except ImportError as error:
            raise ChannelError(f"Alerts to a URL need apprise: {INSTALL}.") from error
        scheme = url.partition("://")[0].lower()
        with _said_by_apprise():
            us = apprise.AppriseAsset(app_id=_US, app_desc=_US, image_url_mask="", image_url_logo="")
            service: Any = apprise.Apprise.instantiate(url, asset=us)
        if service is None:
            raise ChannelError(f"apprise does not accept the {scheme}:// URL. Compare it with apprise's documentation.")
        self.name = str(service.service_name or scheme)
        self._service = service
        self._key = _KEYS.get(type(service).__name__, "")
        if not hasattr(service, self._key) or getattr(service, self._key):  # an older apprise; or the user has set one
            self._key = ""
        said = "priority" in parse_qs(url.partition("?")[2])
        self._has_priority = type(service).__name__ in _WITH_PRIORITY and hasattr(service, "priority") and not said
        pagerduty = type(service).__name__ == "NotifyPagerDuty"
        tokens = service.template_tokens if pagerduty else {}
        self._names = {each for each in ("source", "component") if each in tokens and _is_default(service, each)}
        parts = re.split(r"[/?&=:@#,\s]+", url.partition("://")[2])
        self._secrets = sorted((each for each in parts if len(each) >= _SHORTEST_SECRET), key=len, reverse=True)

    def send(self, message: AlertMessage) -> None:
        """One request, or as many as the service needs for one message."""
        self._identify(message)
        with _said_by_apprise() as said:
            try:
                sent = self._service.notify(  # not by `Apprise.notify`, which would send from other threads
                    message.text(time.time()), message.title, _TYPES[message.severity], body_format="text"
                )
            except Exception as error:  # a library that sends to a hundred services
                raise ChannelError(self._without_secrets(f"{type(error).__name__}: {error}")) from None
        if not sent:
            raise ChannelError(self._without_secrets(" ".join(said.getvalue().split())) or "not accepted")

    def _identify(self, message: AlertMessage) -> None:
        """Give a service that has fields for it which alert this is, and what it is about."""
        if self._key:
            setattr(self._service, self._key, message.key)
        if self._has_priority:
            self._service.priority = _PRIORITIES[message.severity]
        run = message.run
        about = {"source": socket.gethostname(), "component": (run.name or run.run_id) if run is not None else _US}
        for name in self._names:
            setattr(self._service, name, about[name])

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text[:300]


def _is_default(service: Any, name: str) -> bool:
    """Whether the URL does not say it."""
    return bool(getattr(service, name, None) == service.template_tokens[name].get("default"))


class _SilencedLogger:
    """Apprise's logger, which goes nowhere while any channel sends: what it says may hold the URL."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sending = 0
        self._propagates = True

    def begin(self, logger: logging.Logger, handler: logging.Handler) -> None:
        """A channel sends."""
        with self._lock:
            if not self._sending:
                self._propagates, logger.propagate = logger.propagate, False
            self._sending += 1
            logger.addHandler(handler)

    def end(self, logger: logging.Logger, handler: logging.Handler) -> None:
        """It has sent."""
        with self._lock:
            logger.removeHandler(handler)
            self._sending -= 1
            if not self._sending:
                logger.propagate = self._propagates


_quiet = _SilencedLogger()


@contextmanager
def _said_by_apprise() -> Iterator[StringIO]:
    """Gather what apprise logs in this thread, and keep it out of all logs."""
    said = StringIO()
    handler, thread = logging.StreamHandler(said), threading.get_ident()
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: record.thread == thread)  # other channels send meanwhile
    logger = logging.getLogger("apprise")
    _quiet.begin(logger, handler)
    try:
        yield said
    finally:
        _quiet.end(logger, handler)
