"""What a user asks for with ``autolog(mirrors=...)``: which other tools get the same numbers.

In: texts such as ``tensorboard:runs/`` and ``wandb``. Out: checked `Mirror` objects. Guarantees: where a tool is not
installed, that is said at once, with how to install it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from mlflow_stability.errors import SettingsError
from mlflow_stability.vocabulary.argument import did_you_mean, or_list, shown

OTEL, TENSORBOARD, WANDB = "otel", "tensorboard", "wandb"
_NEEDS = {
    TENSORBOARD: ("tensorboard", "TensorBoard"),
    WANDB: ("wandb", "Weights & Biases"),
    OTEL: ("opentelemetry.exporter.otlp.proto.http", "OpenTelemetry's exporter"),
}
"""The package of each tool, and what it is called."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """One tool."""

    tool: str
    target: str = ""
    """Behind the colon: an address, a folder, a project; empty for the tool's own default."""

    @property
    def key(self) -> str:
        """By which it is known in files: its tool."""
        return self.tool


def mirrors_of(given: Any) -> tuple[Mirror, ...]:
    """The mirrors that were asked for, one or several."""
    several = (given,) if isinstance(given, str | Mirror) else given
    if several is None or not isinstance(several, Iterable) or isinstance(several, bytes | Mapping):
        raise SettingsError(f"mirrors must be texts such as {_EXAMPLE}, one or several; got {shown(given)}.")
    found = tuple(_mirror(each) for each in several)
    tools = [each.tool for each in found]
    twice = next((each for each in tools if tools.count(each) > 1), None)
    if twice is not None:
        raise SettingsError(f"mirrors has {twice!r} twice; each tool can be used once.")
    return found


def _mirror(given: Any) -> Mirror:
    if isinstance(given, Mirror):
        return given
    tool, _, target = given.partition(":") if isinstance(given, str) else ("", "", "")
    if tool not in _NEEDS:
        hint = did_you_mean(tool, _NEEDS)
        raise SettingsError(
            f"mirrors can be {or_list(map(repr, _NEEDS))}, with a target behind a colon; got {shown(given)}.{hint}"
        )
    package, called = _NEEDS[tool]
    if not _installed(package):
        raise SettingsError(
            f"mirrors={given!r} needs {called}, which is not installed here: pip install 'mlflow-stability[{tool}]'."
        )
    return Mirror(tool, target)


def _installed(package: str) -> bool:
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:  # a package above it is missing
        return False
    return spec is not None and spec.origin is not None  # a folder of that name is no package


_EXAMPLE = "'tensorboard:runs/' and 'wandb'"
