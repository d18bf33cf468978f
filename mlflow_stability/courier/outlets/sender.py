"""Sends messages over one channel: in order, one at a time, on a thread of its own, again and again until it works.

Guarantees: whoever calls `advance` never waits; a message is started only after `keep` was called with it in `pending`,
and `keep` is called again as soon as it was sent, so that a killed courier sends nothing twice that it kept as sent;
a failing channel is reported once.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from mlflow_stability.alerts.channels import Channel
from mlflow_stability.alerts.message import AlertMessage

FIRST_DELAY = 1.0
LONGEST_DELAY = 300.0
MOST_PENDING = 100
"""Messages that wait for a channel that does not work; then the oldest are dropped."""


class ChannelSender:
    """One channel on its way."""

    def __init__(
        self, key: str, opened: Callable[[], Channel], say: Callable[[str], None], keep: Callable[[], None]
    ) -> None:
        self.key = key
        self.pending: deque[AlertMessage] = deque()
        self.sent = 0
        self.dropped = 0
        self.attempts = 0
        """Failed attempts since the last message that was sent."""
        self._opened = opened
        self._say = say
        self._keep = keep
        self._channel: Channel | None = None
        self._reported = False
        self._results: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._busy = False
        self._delay = FIRST_DELAY
        self._again_at = 0.0

    def add(self, messages: list[AlertMessage]) -> None:
        """Send these, too."""
        self.pending.extend(messages)
        while len(self.pending) > MOST_PENDING:
            del self.pending[1 if self._busy else 0]
            self.dropped += 1

    def advance(self, now: float) -> bool:
        """Take in how the last attempt ended, and begin the next one; True if a message was sent."""
        moved = self._busy and self._take_result(now)
        if self.pending and not self._busy and now >= self._again_at:
            self._keep()
            self._busy = True
            threading.Thread(
                target=self._send, args=(self.pending[0],), name=f"alerts to {self.key}", daemon=True
            ).start()
        return moved

    def saved(self) -> dict[str, Any]:
        """What a new courier goes on from."""
        return {
            "pending": [each.plain() for each in self.pending],
            "sent": self.sent,
            "dropped": self.dropped,
            "reported": self._reported,
        }

    def resume(self, saved: dict[str, Any]) -> None:
        """Go on where `saved` was called."""
        self.pending = deque(AlertMessage.from_plain(each) for each in saved.get("pending", ()))
        self.sent, self.dropped = saved.get("sent", 0), saved.get("dropped", 0)
        self._reported = saved.get("reported", False)

    def _take_result(self, now: float) -> bool:
        try:
            error = self._results.get_nowait()
        except queue.Empty:
            return False
        self._busy = False
        if error:
            self.attempts += 1
            self._again_at, self._delay = now + self._delay, min(LONGEST_DELAY, self._delay * 2)
            if not self._reported:
                self._reported = True
                self._say(
                    f"Alerts to {self.key} were not accepted ({error}). Training continues; each alert is sent again "
                    "until it is accepted. Check the URL with `mlflow-stability doctor --alerts`."
                )
            return False
        self.pending.popleft()
        self.sent += 1
        self.attempts, self._delay, self._again_at = 0, FIRST_DELAY, 0.0
        self._keep()
        return True

    def _send(self, message: AlertMessage) -> None:
        try:
            if self._channel is None:
                self._channel = self._opened()
            self._channel.send(message)
        except Exception as error:  # whatever it is, the next attempt may work
            self._results.put(str(error) or type(error).__name__)
        else:
            self._results.put("")
