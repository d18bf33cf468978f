"""Sends a message: by URL through apprise, to the console, or to a Python callable."""

from __future__ import annotations

from mlflow_stability.alerts.channels.apprise_channel import AppriseChannel
from mlflow_stability.alerts.channels.callback_thread import CallbackAlerts
from mlflow_stability.alerts.channels.channel import Channel, ChannelError
from mlflow_stability.alerts.channels.console_channel import ConsoleChannel, console_file
from mlflow_stability.alerts.channels.open_channel import open_channel

__all__ = [
    "AppriseChannel",
    "CallbackAlerts",
    "Channel",
    "ChannelError",
    "ConsoleChannel",
    "console_file",
    "open_channel",
]
