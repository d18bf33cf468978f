"""All types of findings, detectors and rules, their nouns, and lists of detectors by name.

A text from `describe` builds the very same detectors again with `read_detectors`, so that "the same detectors" never
silently means today's defaults.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, is_dataclass
from math import isnan
from typing import Any, cast

from mlflow_stability.detectors.detector import Detector
from mlflow_stability.detectors.finding_type import FindingType, Instability
from mlflow_stability.detectors.sensitivity import at_sensitivity
from mlflow_stability.errors import SettingsError
from mlflow_stability.kinds.documentation import FindingDocumentation, documentation_of
from mlflow_stability.kinds.rule import Rule
from mlflow_stability.vocabulary.discovery import subclasses_in
from mlflow_stability.vocabulary.judging import CLASSIC, DEFAULT, DETECTORS_TAKEN
from mlflow_stability.vocabulary.text.foreign_names import resolve_kind, similar_kinds

FOLDERS = ("loss", "progress", "gradients", "optimizer", "inside", "hardware", "reported", "first_look")
"""The sub-packages whose files are searched: a new file in one of them is all that a new detector needs."""
_ALL: tuple[type[FindingType], ...] = tuple(
    sorted(
        (cls for folder in FOLDERS for cls in subclasses_in(f"{__package__}.{folder}", FindingType)),
        key=lambda cls: (cls.order, cls.kind, cls.rule, cls.__name__),
    )
)
RULES = tuple(cls for cls in _ALL if issubclass(cls, Rule))  # the rules for whole curves, in their order
TYPES = tuple(cls for cls in _ALL if not issubclass(cls, Rule))
"""The types of findings and the detectors, in their order."""
DETECTORS = tuple(cls for cls in TYPES if issubclass(cls, Detector) and not cls.on_request)
"""The detectors that run by default."""
ON_REQUEST = tuple(cls for cls in TYPES if issubclass(cls, Detector) and cls.on_request)
"""The detectors that run only when they are asked for by name, such as the classic rules."""
SEEN_FROM_OUTSIDE = tuple(cls for cls in TYPES if not issubclass(cls, Detector))
"""The types that no detector finds: how a training ends, what the autopilot did, how the training is set up."""
OF_SETUP = frozenset(cls.kind for cls in TYPES if cls.of_setup)
OF_HARDWARE = frozenset(cls.kind for cls in TYPES if cls.of_hardware)
EXPERIMENTAL = frozenset(cls.kind for cls in TYPES if cls.experimental)
KINDS: tuple[str, ...] = tuple(dict.fromkeys(cls.kind for cls in TYPES))
NAMED = {cls.kind: cls for cls in TYPES if cls.noun}  # of several types of a kind, that which has its noun

RENAMED_THRESHOLDS = {
    "born": ("min_start",),
    "smallest_rise_of_players": ("smallest_rise_adversarial", "smallest_rise_without_level"),
    "smallest_rise_adversarial": ("smallest_rise_adversarial", "smallest_rise_without_level"),
    "undone": ("correlation",),
}
"""Names of thresholds in earlier recordings, and their names today: the first that a detector has."""
_DETECTOR_ATTRIBUTES = ("kind", "rule", "quantities", "compared", "across_places", "begin", "step")


def of_instability(*degrees: Instability) -> frozenset[str]:
    """Return the kinds with one of these degrees of instability."""
    return frozenset(cls.kind for cls in TYPES if cls.instability in degrees)


def default_detectors(*, experimental: bool = True) -> tuple[Detector, ...]:
    """Return the detectors that run by default, with their default thresholds."""
    return tuple(cls() for cls in DETECTORS if experimental or not cls.experimental)


def detectors_named(names: Iterable[str]) -> tuple[Detector, ...]:
    """Return the detectors of names such as ``loss_spike``, or with thresholds, ``LossSpike(threshold=10)``."""
    return tuple(_with_thresholds(*_parse(name)) for name in names)


def choose_detectors(given: Iterable[object], sensitivity: str = "normal") -> tuple[Detector, ...]:
    """Return the detectors of a `detectors=` argument: those given by name at this sensitivity, the others as they are.

    "default" stands for the default detectors. Of them, a detector beside it replaces the one of its name, and a
    classic rule all of its kind. Raises ``SettingsError`` where an item is no detector, for a threshold that is no
    number, and for two of one name.
    """
    given = tuple(given)
    detectors: list[Detector] = []
    for item in given:
        if item == DEFAULT:
            continue
        if not isinstance(item, str):
            new: tuple[Detector, ...] = (_checked(item),)
        elif "(" in item:
            new = tuple(map(_checked, detectors_named([item])))
        else:
            new = at_sensitivity(detectors_named([item]), sensitivity)
        detectors += [detector for detector in new if detector not in detectors]
    names = [name_of(detector) for detector in detectors]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SettingsError(f"detectors= has {twice} twice, with different thresholds: give one of them.")
    if DEFAULT not in given:
        return tuple(detectors)
    replaced = {(detector.kind, detector.rule) for detector in detectors}
    kept = [
        detector
        for detector in at_sensitivity(default_detectors(), sensitivity)
        if not replaced & {(detector.kind, detector.rule), (detector.kind, CLASSIC)}
    ]
    return (*kept, *detectors)


def _checked(given: object) -> Detector:
    """Return a detector of the user's, whose thresholds are numbers; it need not derive from `Detector`."""
    is_detector = is_dataclass(given) and all(hasattr(given, name) for name in _DETECTOR_ATTRIBUTES)
    if isinstance(given, type) or not is_detector:
        raise SettingsError(f"detectors= takes {DETECTORS_TAKEN}; got {given!r}.")
    for field in fields(cast(Any, given)):
        value = getattr(given, field.name)
        if isinstance(field.default, bool | int | float) and (not isinstance(value, int | float) or isnan(value)):
            raise SettingsError(f"{type(given).__name__}({field.name}=...) must be a number; got {value!r}.")
    return cast(Detector, given)


def name_of(detector: Detector | type[Detector]) -> str:
    """Return the name of a detector in a `detectors=` argument."""
    return f"{detector.kind}:{detector.rule}" if detector.rule else detector.kind


def describe(detectors: Sequence[Detector]) -> str:
    """Return a text from which `read_detectors` makes the very same detectors."""
    # A detector without thresholds is its name alone: a tag holds few characters.
    entries = [
        [name_of(detector), thresholds] if (thresholds := asdict(detector)) else name_of(detector)
        for detector in detectors
    ]
    return json.dumps(entries, separators=(",", ":"))


def read_detectors(text: str) -> tuple[Detector, ...]:
    """Return the detectors that `describe` was given."""
    try:
        entries = [(entry, {}) if isinstance(entry, str) else entry for entry in json.loads(text)]
        return tuple(_with_thresholds(_by_name(name), thresholds) for name, thresholds in entries)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, SettingsError):
            raise
        raise SettingsError(f"Not a description of detectors ({error}): {text[:100]!r}") from None


def documentation(name: str) -> FindingDocumentation:
    """Return the documentation of a kind or of one rule: ``loss_spike``, ``loss_spike:classic``, ``killed``."""
    others = {cls.kind: cls for cls in SEEN_FROM_OUTSIDE}
    return documentation_of(others.get(name) or _by_name(name, also=list(others)))


def noun_of(kind: str, count: int = 1) -> str:
    """Return the noun for one finding or several; for a kind of the user's own, the words of its name."""
    named = NAMED.get(kind)
    if named is not None:
        return f"{count:,} {named.plural}" if named.plural and count > 1 else named.noun
    words = kind.replace("_", " ")
    return f"{words} ({count:,} times)" if count > 1 else words


def bare_noun_of(kind: str) -> str:
    """Return the noun without its article: "loss spike"."""
    return noun_of(kind).removeprefix("an ").removeprefix("a ") if kind in NAMED else noun_of(kind)


def definite_noun_of(kind: str) -> str:
    """Return the noun for a finding that was mentioned before: "the loss spike", but "NaN"."""
    noun, bare = noun_of(kind), bare_noun_of(kind)
    return noun if bare == noun else f"the {bare}"


def _parse(text: str) -> tuple[type[Detector], dict[str, Any]]:
    """Return the detector that a text names, and the thresholds in its parentheses."""
    name, parenthesis, arguments = text.partition("(")
    if not parenthesis:
        return _by_name(text), {}
    detector = next((cls for cls in (*DETECTORS, *ON_REQUEST) if cls.__name__ == name.strip()), None)
    detector = detector or _by_name(name.strip())
    try:
        call = ast.parse(f"detector({arguments}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("no call with keywords")
        return detector, {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError):
        raise SettingsError(
            f"Thresholds are written as {detector.__name__}(threshold=10), with numbers; got {text!r}."
        ) from None


def _with_thresholds(detector: type[Detector], thresholds: dict[str, Any]) -> Detector:
    names = {field.name for field in fields(detector)}
    thresholds = {
        next((new for new in RENAMED_THRESHOLDS.get(name, ()) if new in names), name): value
        for name, value in thresholds.items()
    }
    unknown = sorted(set(thresholds) - names)
    if unknown:
        raise SettingsError(f"{name_of(detector)} has no threshold {unknown[0]!r}; it has {', '.join(sorted(names))}.")
    return detector(**thresholds)


def _by_name(name: str, also: Sequence[str] = ()) -> type[Detector]:
    detectors = {name_of(cls): cls for cls in (*DETECTORS, *ON_REQUEST)}
    meant = resolve_kind(name, detectors)
    if meant in detectors:
        return detectors[meant]
    near = similar_kinds(meant, [*detectors, *also])
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join([*detectors, *also])}."
    raise SettingsError(f"There is no detector {name!r}; {hint}")
