"""What a channel is."""

from __future__ import annotations

from typing import Protocol

from mlflow_stability.alerts.message import AlertMessage
from mlflow_stability.errors import StabilityError


class ChannelError(StabilityError):
    """A message was not sent; the text says why, without the channel's address."""


class Channel(Protocol):
    """A way to a person."""

    name: str
    """In a word or two, without anything secret."""

    def send(self, message: AlertMessage) -> None:
        """Send it, or raise `ChannelError`; may take as long as a request does."""
