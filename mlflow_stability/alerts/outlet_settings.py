"""What the courier needs to know about alerts and other tools, as a text for its environment.

In: the settings of the training. Out: a text, and the same settings read back. Guarantees: addresses are in that text
alone, which is in no file and no record; the courier takes it out of its environment before it starts anything.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from mlflow_stability.alerts.alert import Alert
from mlflow_stability.alerts.metrics.mirrors import Mirror
from mlflow_stability.vocabulary.result import Severity

VARIABLE = "_STABILITY_OUTLETS"


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """One channel that the courier sends alerts to."""

    key: str
    """By which it is known in files: ``slack``, and ``slack_2`` for a second one."""
    address: str = field(repr=False)
    severity: Severity = Severity.WARNING
    rules: tuple[str, ...] = ()
    cooldown: float | None = None


@dataclass(frozen=True, slots=True)
class OutletSettings:
    """All that the courier does beside the run."""

    channels: tuple[ChannelSettings, ...] = ()
    console: str = ""
    """The training's console, if the courier can open it."""
    prometheus_port: int | None = None
    mirrors: tuple[Mirror, ...] = ()
    is_left_behind: bool = False
    """Whether this is for recordings of other trainings: then only for those that had alerts themselves."""

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.channels or self.mirrors or self.prometheus_port)

    def text(self) -> str:
        """As it goes into the courier's environment."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def left_behind(self) -> OutletSettings:
        """What of it is meant for a recording that another training left behind."""
        return replace(self, console="", prometheus_port=None, is_left_behind=True)


def outlet_settings(
    alerts: Sequence[Alert], console: str, prometheus_port: int | None = None, mirrors: tuple[Mirror, ...] = ()
) -> OutletSettings:
    """The settings of these alerts and mirrors; functions are called by the training itself."""
    count: Counter[str] = Counter()
    channels = []
    for alert in alerts:
        if isinstance(alert.to, str) and not alert.in_training:
            count[alert.service] += 1
            number = count[alert.service]
            key = alert.service if number == 1 else f"{alert.service}_{number}"
            channels.append(ChannelSettings(key, alert.to, alert.severity, alert.rules, alert.cooldown))
    return OutletSettings(tuple(channels), console, prometheus_port, mirrors)


def taken_from_environment() -> OutletSettings:
    """The settings in this process's environment, which are not there any more afterwards."""
    text = os.environ.pop(VARIABLE, "")
    if not text:
        return OutletSettings()
    said = json.loads(text)
    channels = tuple(
        ChannelSettings(**{**each, "severity": Severity(each["severity"]), "rules": tuple(each["rules"])})
        for each in said.pop("channels")
    )
    mirrors = tuple(Mirror(**each) for each in said.pop("mirrors"))
    return OutletSettings(channels, mirrors=mirrors, **said)
