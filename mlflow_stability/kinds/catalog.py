"""Every judgement there is, in the order in which they look.

In: names such as ``loss_spike`` or ``loss_spike:classic``. Out: detectors, what is known of each, and a text from which
the very same detectors are built again, so that "the same detectors" never silently means today's defaults.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any

from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.finding_type import FindingType, Instability
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.documentation import FindingDocumentation, documentation_of
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.discovery import subclasses_in
from mlflow_stability.vocabulary.text import kind_named, kinds_near

ROOMS = ("loss", "progress", "gradients", "optimizer", "inside", "hardware", "reported", "first_look")
"""The sub-packages whose files are looked through; a new file in one of them is all that a new detector needs."""
_ALL: tuple[type[FindingType], ...] = tuple(
    sorted(
        (cls for room in ROOMS for cls in subclasses_in(f"{__package__}.{room}", FindingType)),
        key=lambda cls: (cls.order, cls.kind, cls.rule, cls.__name__),
    )
)
RULES = tuple(cls for cls in _ALL if issubclass(cls, Rule))
"""Every rule that judges whole curves, in the order that they declare."""
TYPES = tuple(cls for cls in _ALL if not issubclass(cls, Rule))
"""Every type of finding, and every other detector that finds one, in the order that they declare."""
_LOOKING = tuple(each for each in TYPES if issubclass(each, Detector))
DETECTORS = tuple(each for each in _LOOKING if not each.on_request)
"""Those that look unless others are asked for."""
ON_REQUEST = tuple(each for each in _LOOKING if each.on_request)
"""Those that look only when they are asked for by name: the classic rules, and one that is for Adam's family alone."""
SEEN_FROM_OUTSIDE = tuple(each for each in TYPES if not issubclass(each, Detector))
"""What no detector finds: how a training ends, what the autopilot did, how the training is set up, what it came to."""
OF_SETUP = frozenset(each.kind for each in TYPES if each.of_setup)
"""Mistakes in the set-up."""
OF_HARDWARE = frozenset(each.kind for each in TYPES if each.of_hardware)
"""What is about the machine, not about the training."""
EXPERIMENTAL = frozenset(each.kind for each in TYPES if each.experimental)
"""The kinds that are not relied upon yet: never above INFO, and part of no verdict."""
KINDS: tuple[str, ...] = tuple(dict.fromkeys(each.kind for each in TYPES))
"""Every kind of trouble that there is a documentation for."""


def of_instability(*degrees: Instability) -> frozenset[str]:
    """The kinds of finding that declare one of these."""
    return frozenset(each.kind for each in TYPES if each.instability in degrees)


def default_detectors(*, experimental: bool = True) -> tuple[Detector, ...]:
    """Those that look unless others are asked for, with their default thresholds."""
    return tuple(each() for each in DETECTORS if experimental or not each.experimental)


RENAMED = {
    "smallest_rise_of_players": ("smallest_rise_adversarial", "smallest_rise_without_level"),
    "undone": ("correlation",),
}
"""Thresholds of recordings made before, with what they are called today, the first that a detector has."""


def named(names: Iterable[str]) -> tuple[Detector, ...]:
    """The detectors of these names: ``loss_spike``, or with thresholds, ``LossSpike(threshold=10)``."""
    return tuple(_with(*_named_thresholds(name)) for name in names)


def name_of(detector: Detector | type[Detector]) -> str:
    """How a detector is asked for."""
    return f"{detector.kind}:{detector.rule}" if detector.rule else detector.kind


def described(detectors: Sequence[Detector]) -> str:
    """A text from which `built` makes the very same detectors."""
    return json.dumps([_entry(detector) for detector in detectors], separators=(",", ":"))


def _entry(detector: Detector) -> str | list[Any]:
    """The name and the thresholds; of a detector without any, the name alone, for a tag holds few characters."""
    thresholds = asdict(detector)
    return [name_of(detector), thresholds] if thresholds else name_of(detector)


def built(text: str) -> tuple[Detector, ...]:
    """The detectors that `described` was given."""
    try:
        entries = [(entry, {}) if isinstance(entry, str) else entry for entry in json.loads(text)]
        return tuple(_with(_by_name(name), thresholds) for name, thresholds in entries)
    except (TypeError, ValueError) as error:
        if isinstance(error, SettingsError):
            raise
        raise SettingsError(f"Not a description of detectors ({error}): {text[:100]!r}") from None


def documentation(name: str) -> FindingDocumentation:
    """What is known of a kind, or of one rule that finds it: ``loss_spike``, ``loss_spike:classic``, ``killed``."""
    ways = {each.kind: each for each in SEEN_FROM_OUTSIDE}
    return documentation_of(ways.get(name) or _by_name(name, also=list(ways)))


def _named_thresholds(text: str) -> tuple[type[Detector], dict[str, Any]]:
    """The detector that a text names, and the thresholds in its parentheses."""
    name, parenthesis, _ = text.partition("(")
    if not parenthesis:
        return _by_name(text), {}
    detector = next((each for each in (*DETECTORS, *ON_REQUEST) if each.__name__ == name.strip()), None)
    detector = detector or _by_name(name.strip())
    try:
        call = ast.parse(f"detector({text.partition('(')[2]}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("no call with keywords")
        return detector, {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    except (SyntaxError, ValueError):
        raise SettingsError(
            f"Thresholds are written as {detector.__name__}(threshold=10), with numbers; got {text!r}."
        ) from None


def _with(detector: type[Detector], thresholds: dict[str, Any]) -> Detector:
    known = {each.name for each in fields(detector)}
    thresholds = {
        next((new for new in RENAMED.get(name, ()) if new in known), name): value for name, value in thresholds.items()
    }
    unknown = sorted(set(thresholds) - known)
    if unknown:
        raise SettingsError(f"{name_of(detector)} has no threshold {unknown[0]!r}; it has {', '.join(sorted(known))}.")
    return detector(**thresholds)


def _by_name(name: str, also: Sequence[str] = ()) -> type[Detector]:
    known = {name_of(each): each for each in (*DETECTORS, *ON_REQUEST)}
    meant = kind_named(name, known)
    if meant in known:
        return known[meant]
    near = kinds_near(meant, [*known, *also])
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join([*known, *also])}."
    raise SettingsError(f"There is no detector {name!r}; {hint}")
