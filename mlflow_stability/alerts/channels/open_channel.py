"""The channel for an address."""

from __future__ import annotations

from collections.abc import Callable

from mlflow_stability.alerts.alert import CONSOLE
from mlflow_stability.alerts.channels.apprise_channel import AppriseChannel
from mlflow_stability.alerts.channels.channel import Channel
from mlflow_stability.alerts.channels.console_channel import ConsoleChannel


def open_channel(address: str, console: str, relay: Callable[[str], None]) -> Channel:
    """Open the channel of an address; `ChannelError` if there is none.

    Args:
        address: A URL, or ``console``.
        console: The path of the training's console; empty where it has none that can be opened.
        relay: Has the training say something on its console.
    """
    return ConsoleChannel(console, relay) if address == CONSOLE else AppriseChannel(address)
