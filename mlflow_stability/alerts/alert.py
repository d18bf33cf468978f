"""Settings of alerts: where they go, which ones, and how often; and the settings that the courier gets.

Guarantees: an address is shown neither by ``repr`` nor in an error, because it may hold a password or a token. The
courier gets addresses in its environment alone, and removes them there before it starts anything.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from string import Formatter
from typing import Any, Literal

from mlflow_stability.alerts.message import AlertMessage
from mlflow_stability.alerts.mirrors import Mirror
from mlflow_stability.alerts.router import check_rules
from mlflow_stability.alerts.run_metrics import hint_if_unknown
from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.argument import Accepts, check_fields, check_init_arguments, member_of, names, number
from mlflow_stability.vocabulary.result import Severity
from mlflow_stability.vocabulary.settings import DEFAULT_VARIABLES

CONSOLE = "console"
ENVIRONMENT = "env:"  # prefix of the name of an environment variable that holds a URL
ALERTS_VARIABLE = DEFAULT_VARIABLES["alerts"]  # URLs for trainings that give none, separated by blanks or commas
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://\S")
_SEPARATOR = re.compile(r"[\s,]+(?=[A-Za-z][A-Za-z0-9+.\-]*://|console\b)")


def _address(given: Any) -> str | Callable[[AlertMessage], object]:
    """Read a URL, ``console`` or a callable; ``env:NAME`` is replaced by the value of the variable."""
    if callable(given):
        function: Callable[[AlertMessage], object] = given
        return function
    if not isinstance(given, str):
        raise TypeError
    text = given.strip()
    if text.startswith(ENVIRONMENT):
        name = text.removeprefix(ENVIRONMENT)
        text = os.environ.get(name, "").strip()
        if not text:
            raise SettingsError(f"alerts: the environment variable {name} is not set; it should hold a URL.")
    if text != CONSOLE and not _SCHEME.match(text):
        raise ValueError
    return text


def _function(given: Any) -> Any:
    if given is not None and not callable(given):
        raise TypeError
    return given


def _message(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError
    list(Formatter().parse(given))  # raises ValueError where it is no format string
    return given


class _Addressed(Accepts):
    """The address of an alert, which errors do not show."""

    def check(self, name: str, given: object) -> Any:
        """Return the address in its canonical form."""
        try:
            return self.read(given)
        except (TypeError, ValueError) as error:
            if isinstance(error, SettingsError):
                raise
            raise SettingsError(
                f"alerts: {name} must be {self.words}; got {'another text' if isinstance(given, str) else type(given)}."
            ) from None


@check_init_arguments
@dataclass(frozen=True, slots=True)
class Alert:
    """Where alerts go, which ones, and how often.

    Raises `SettingsError` for a value that does not fit.

    Example:

        >>> Alert("console", severity="critical", rules="divergence").rules
        ('divergence',)
        >>> Alert(print, when=lambda signals: signals["mfu"] < 0.3, message="MFU is {mfu:.2f}").message
        'MFU is {mfu:.2f}'
    """

    to: str | Callable[[AlertMessage], object] = field(
        repr=False,
        metadata={"takes": _Addressed("a URL such as 'slack://...', 'env:NAME', 'console', or a callable", _address)},
    )
    """A URL of apprise ("slack://...", "mailto://...", "discord://..."), "env:NAME" for a URL in an environment
    variable, "console", or a function that is called with an `AlertMessage`."""
    severity: Severity = field(metadata=member_of(Severity))
    """Lowest severity of events that are sent: "info", "warning" or "critical"."""
    rules: tuple[str, ...] = field(
        metadata=names("an event type or a condition such as 'loss>50'", "['divergence', 'grad_norm>100']")
    )
    """Finding types ("loss_spike") and conditions on signals ("grad_norm>100", always sent). Default: all types."""
    cooldown: float | None = field(metadata=number(at_least=0, what="of seconds", optional=True))
    """Shortest time in seconds between two alerts of one type. Default: by type, 60 s for NaN to 1800 s for plateaus.
    A rise in severity does not wait."""

    when: Callable[[Mapping[str, float]], object] | None = field(
        metadata={"takes": Accepts("a function of the newest value of each signal, or None", _function)}
    )
    """A function of the newest value of each signal by name, such as ``lambda s: s["mfu"] < 0.3``. It is called after
    each step, on a thread of the training process, which then sends the alert itself. With it, events are sent only for
    `rules`. While a signal that it reads was not measured yet, it is not met."""
    message: str = field(metadata={"takes": Accepts("a text such as 'MFU is {mfu:.2f}'", _message)})
    """What an alert of `when` says, with signals as fields: "MFU is {mfu:.2f}"."""

    def __init__(  # accepts more types than the fields have
        self,
        to: str | Callable[[AlertMessage], object],
        severity: Severity | Literal["info", "warning", "critical"] = Severity.WARNING,
        rules: str | Iterable[str] = (),
        cooldown: float | None = None,
        when: Callable[[Mapping[str, float]], object] | None = None,
        message: str = "",
    ) -> None:
        given = {"to": to, "severity": severity, "rules": rules, "cooldown": cooldown, "when": when, "message": message}
        for argument, value in given.items():
            object.__setattr__(self, argument, value)
        check_fields(self)
        check_rules(self.rules, self.severity)
        for _, name, _, _ in Formatter().parse(self.message):
            if name is not None and (hint := hint_if_unknown(name)):
                raise SettingsError(f"alerts: there is no signal {name!r}, as in message={self.message!r}.{hint}")
        if self.message and self.when is None:
            raise SettingsError("alerts: message= is for alerts with when=; events have messages of their own.")

    @property
    def service(self) -> str:
        """The kind of channel, in a word that gives nothing away: ``slack``, ``console``, a function's name."""
        if callable(self.to):
            return getattr(self.to, "__name__", type(self.to).__name__)
        return self.to.partition("://")[0].lower()

    @property
    def in_training(self) -> bool:
        """Whether the training process sends it, not the courier."""
        return callable(self.to) or self.when is not None


def read_alerts(given: Any) -> tuple[Alert, ...]:
    """Read one URL, callable or `Alert`, or several; without any, those of the environment."""
    if isinstance(given, str | Alert) or callable(given):
        given = (given,)
    if given is None or not isinstance(given, Iterable) or isinstance(given, bytes | Mapping):
        raise SettingsError(
            f"alerts must be URLs, callables or Alert objects, one or several; got {type(given).__name__}."
        )
    alerts = tuple(alert if isinstance(alert, Alert) else Alert(alert) for alert in given) or alerts_from_environment()
    if any(isinstance(alert.to, str) and alert.to != CONSOLE for alert in alerts) and find_spec("apprise") is None:
        raise SettingsError(f"alerts to a URL need apprise, which is not installed here: {INSTALL_ALERTS}.")
    return alerts


def alerts_from_environment() -> tuple[Alert, ...]:
    urls = os.environ.get(ALERTS_VARIABLE, "").strip(" ,\n")
    return tuple(Alert(url) for url in _SEPARATOR.split(urls) if url)


INSTALL_ALERTS = "pip install 'mlflow-stability[alerts]'"
OUTLETS_VARIABLE = "_STABILITY_OUTLETS"


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """One channel that the courier sends alerts to."""

    key: str  # name in files: ``slack``, and ``slack_2`` for a second one
    address: str = field(repr=False)
    severity: Severity
    rules: tuple[str, ...]
    cooldown: float | None


@dataclass(frozen=True, slots=True)
class OutletSettings:
    """Where the courier sends data beside the run."""

    channels: tuple[ChannelSettings, ...] = ()
    console: str = ""  # path of the training's console, if the courier can open it
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


NO_OUTLETS = OutletSettings()


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
        return NO_OUTLETS
    values = json.loads(text)
    channels = tuple(
        ChannelSettings(**{**channel, "severity": Severity(channel["severity"]), "rules": tuple(channel["rules"])})
        for channel in values.pop("channels")
    )
    mirrors = tuple(Mirror(**mirror) for mirror in values.pop("mirrors"))
    return OutletSettings(channels, mirrors=mirrors, **values)
