"""Settings of alerts and other tools for the courier, as a text in its environment.

Guarantees: addresses are in this text alone, which is in no file and no record; the courier removes it from its
environment before it starts anything.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from mlflow_stability.alerts.alert import Alert
from mlflow_stability.alerts.mirrors import Mirror
from mlflow_stability.vocabulary.result import Severity

OUTLETS_VARIABLE = "_STABILITY_OUTLETS"


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """One channel that the courier sends alerts to."""

    key: str
    """Name in files: ``slack``, and ``slack_2`` for a second one."""
    address: str = field(repr=False)
    severity: Severity = Severity.WARNING
    rules: tuple[str, ...] = ()
    cooldown: float | None = None


@dataclass(frozen=True, slots=True)
class OutletSettings:
    """Where the courier sends data beside the run."""

    channels: tuple[ChannelSettings, ...] = ()
    console: str = ""
    """Path of the training's console, if the courier can open it."""
    prometheus_port: int | str | None = None
    mirrors: tuple[Mirror, ...] = ()
    is_left_behind: bool = False
    """Whether this is for recordings of other trainings; it then applies only to those that had alerts themselves."""

    def __bool__(self) -> bool:
        return bool(self.channels or self.mirrors or self.prometheus_port)

    def text(self) -> str:
        """Return the text for the courier's environment."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def left_behind(self) -> OutletSettings:
        """Return the settings for recordings that other trainings left behind."""
        return replace(self, console="", prometheus_port=None, is_left_behind=True)


def outlet_settings(
    alerts: Sequence[Alert], console: str, prometheus_port: int | str | None = None, mirrors: tuple[Mirror, ...] = ()
) -> OutletSettings:
    """Return the settings for these alerts and mirrors, without functions, which the training calls itself."""
    count: Counter[str] = Counter()
    channels = []
    for alert in alerts:
        if isinstance(alert.to, str) and not alert.in_training:
            count[alert.service] += 1
            number = count[alert.service]
            key = alert.service if number == 1 else f"{alert.service}_{number}"
            channels.append(ChannelSettings(key, alert.to, alert.severity, alert.rules, alert.cooldown))
    return OutletSettings(tuple(channels), console, prometheus_port, mirrors)


def pop_from_environment() -> OutletSettings:
    """Remove the settings from this process's environment, and return them."""
    text = os.environ.pop(OUTLETS_VARIABLE, "")
    if not text:
        return OutletSettings()
    values = json.loads(text)
    channels = tuple(
        ChannelSettings(**{**channel, "severity": Severity(channel["severity"]), "rules": tuple(channel["rules"])})
        for channel in values.pop("channels")
    )
    mirrors = tuple(Mirror(**mirror) for mirror in values.pop("mirrors"))
    return OutletSettings(channels, mirrors=mirrors, **values)
