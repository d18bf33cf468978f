"""What an argument takes: its type, range and choices, and the sentence for what it does not take.

In: the name of an argument and what was given. Out: the value in its one form, or `SettingsError` with the name, what
it takes and what it got. Guarantees: whatever was given, of any type, is answered by that sentence.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from mlflow_stability.errors import SettingsError

_P = ParamSpec("_P")
_R = TypeVar("_R")
_LONGEST = 80
"""Characters of a value that are shown."""


@dataclass(frozen=True, slots=True)
class Takes:
    """What one argument takes."""

    words: str
    """Behind "must be": ``a whole number, at least 1``."""
    read: Callable[[Any], Any]
    """Gives the value in its one form; raises ``TypeError`` or ``ValueError`` for what cannot be meant."""
    choices: tuple[str, ...] = ()
    """The texts among its choices, of which the nearest is suggested."""

    def checked(self, name: str, given: object) -> Any:
        """The value of the argument `name`."""
        try:
            return self.read(_scalar(given))
        except (TypeError, ValueError, LookupError, OverflowError, AttributeError):
            hint = did_you_mean(given, self.choices) if isinstance(given, str) else ""
            raise SettingsError(f"{name} must be {self.words}; got {shown(given)}.{hint}") from None


def whole_number(least: int, what: str = "", *, optional: bool = False) -> Mapping[str, Takes]:
    """An integer; a float without a fraction, such as 1e9, is one too."""

    def read(given: Any) -> int:
        number = _number(given)
        if number != int(number) or number < least:
            raise ValueError
        return int(number)

    return _takes(f"a whole number{what and f' {what}'}, {_at_least(least)}", read, optional)


def number(
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    what: str = "",
    optional: bool = False,
) -> Mapping[str, Takes]:
    """A number within limits; infinity is one where no limit excludes it, NaN never is."""
    limits: list[tuple[str, Callable[[float], bool]]] = []
    if least is not None:
        limits.append((_at_least(least), lambda value: value >= least))
    if above is not None:
        limits.append((f"more than {above:g}", lambda value: value > above))
    if most is not None:
        limits.append((f"at most {most:g}", lambda value: value <= most))
    if below is not None:
        limits.append((f"less than {below:g}", lambda value: value < below))

    def read(given: Any) -> float:
        value: float = _number(given)
        if not all(holds(value) for _, holds in limits):
            raise ValueError
        return value

    bounds = " and ".join(said for said, _ in limits)
    return _takes(f"a number{what and f' {what}'}{bounds and f', {bounds}'}", read, optional)


def one_of(*choices: bool | str, optional: bool = False) -> Mapping[str, Takes]:
    """One of a few values, of the very same type: 1 is not True."""

    def read(given: Any) -> bool | str:
        for each in choices:
            if type(each) is type(given) and each == given:
                return each
        raise ValueError

    texts = tuple(each for each in choices if isinstance(each, str))
    return _takes(or_list([repr(each) for each in choices], optional=optional), read, optional, texts, listed=True)


def yes_or_no() -> Mapping[str, Takes]:
    """True or False."""
    return one_of(True, False)


def member_of(kind: type[Enum]) -> Mapping[str, Takes]:
    """A member of an enumeration, or its name."""
    known = tuple(kind.__members__)

    def read(given: Any) -> Enum:
        if isinstance(given, kind):
            return given
        return kind.__members__[given.upper()]

    return _takes(or_list([f"{kind.__name__}.{each}" for each in known]), read, False, known)


def names(what: str, example: str) -> Mapping[str, Takes]:
    """A text or several; always a tuple afterwards."""

    def read(given: Any) -> tuple[str, ...]:
        several = (given,) if isinstance(given, str) else tuple(given)
        if isinstance(given, bytes | Mapping) or not all(isinstance(each, str) for each in several):
            raise TypeError
        return several

    return _takes(f"{what}, or several of them, such as {example}", read, False)


def text(what: str, example: str, *, optional: bool = False) -> Mapping[str, Takes]:
    """One text that is not empty."""

    def read(given: Any) -> str:
        if not isinstance(given, str) or not given:
            raise TypeError
        return given

    return _takes(f"{what}, such as {example}", read, optional)


def folder(example: str) -> Mapping[str, Takes]:
    """A path, as a text or as a `Path`; not the empty text, which names no folder."""

    def read(given: Any) -> Path:
        if given == "" or not isinstance(given, str | os.PathLike):
            raise TypeError
        return Path(given)

    return _takes(f"the path of a folder, such as {example}", read, True)


def texts_by_name(example: str) -> Mapping[str, Takes]:
    """Texts by name; numbers and the like are written as texts."""

    def read(given: Any) -> dict[str, str]:
        return {} if given is None else {str(key): str(value) for key, value in given.items()}

    return _takes(f"a mapping of names to texts, such as {example}, or None", read, False)


def stateful(example: str) -> Mapping[str, Takes]:
    """Objects with `state_dict()` and `load_state_dict()`, by name."""

    def read(given: Any) -> dict[str, Any]:
        found = {} if given is None else {str(name): each for name, each in given.items()}
        for each in found.values():
            if not (callable(getattr(each, "state_dict", None)) and callable(getattr(each, "load_state_dict", None))):
                raise TypeError
        return found

    words = f"a mapping of names to objects with state_dict() and load_state_dict(), such as {example}, or None"
    return _takes(words, read, False)


def objects(words: str) -> Mapping[str, Takes]:
    """Texts and objects that another room knows, one or several; None where nothing is said."""

    def read(given: Any) -> tuple[Any, ...]:
        if isinstance(given, bytes | bool | int | float | Mapping):
            raise TypeError
        return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)

    return _takes(words, read, True)


def instance_of(kind: type, *others: bool) -> Mapping[str, Takes]:
    """An object of a class, or one of a few truth values."""

    def read(given: Any) -> Any:
        if not isinstance(given, kind) and not any(given is other for other in others):
            raise TypeError
        return given

    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    words = f"{article} {kind.__name__}" if others else f"{article} {kind.__name__} object"
    return _takes(or_list([*map(repr, others), words]), read, False)


def elsewhere(words: str = "") -> Mapping[str, Takes]:
    """Anything: it is checked where its type is known, which is above this room."""
    return {"takes": Takes(words, lambda given: given)}


def check_fields(record: Any) -> None:
    """Check every field of a frozen dataclass against what its metadata says it takes, and keep the one form of it."""
    for each in fields(record):
        taking: Takes = each.metadata["takes"]
        given = getattr(record, each.name)
        value = taking.checked(each.name, given)
        if value is not given:
            object.__setattr__(record, each.name, value)


def check_names(call: str, given: Mapping[str, object], known: Iterable[str]) -> None:
    """Refuse an argument that a call does not have, with the one that was probably meant, or where it is now."""
    has = list(known)
    for name, value in given.items():
        if name not in has:
            from mlflow_stability.vocabulary.argument_places import place_of  # which knows all that takes arguments

            place = place_of(call, name, value, has)
            hint = f" {place}" if place else did_you_mean(name, has) or f" It has {or_list(has, last='and')}."
            raise SettingsError(f"{call} has no argument {name!r}.{hint}")


def _uri(given: Any) -> str | None:
    if given is None:
        return None
    if not isinstance(given, str | os.PathLike) or not isinstance(text := os.fspath(given), str):
        raise TypeError
    return text


EVERYWHERE = {"tracking_uri": Takes("the address of an MLflow store, such as 'sqlite:///mlflow.db', or None", _uri)}
"""What arguments take that mean the same in all public functions."""


_GIVEN: ContextVar[frozenset[str]] = ContextVar("_GIVEN", default=frozenset())


def given_names() -> frozenset[str]:
    """The names of the arguments that the public function which runs was given, their defaults not among them."""
    return _GIVEN.get()


def with_known_names(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A public function that answers a misspelt argument with the one that was probably meant.

    Arguments that mean the same everywhere are checked here, too.
    """
    known = list(inspect.signature(function).parameters)
    call = f"{function.__qualname__.removesuffix('.__init__')}()"
    checked = [(position, name) for position, name in enumerate(known) if name in EVERYWHERE]
    plain: Callable[..., _R] = function

    @functools.wraps(function)
    def called(*given: _P.args, **named: _P.kwargs) -> _R:
        check_names(call, named, known)
        in_order, by_name = list(given), dict(named)
        for position, name in checked:
            if name in by_name:
                by_name[name] = EVERYWHERE[name].checked(name, by_name[name])
            elif position < len(in_order):
                in_order[position] = EVERYWHERE[name].checked(name, in_order[position])
        outer = _GIVEN.set(frozenset(named))
        try:
            return plain(*in_order, **by_name)
        finally:
            _GIVEN.reset(outer)

    return called


def made_with_known_names(kind: type[_R]) -> type[_R]:
    """The same for what makes the objects of a class."""
    setattr(kind, "__init__", with_known_names(kind.__init__))  # noqa: B010 - a plain assignment has no type
    return kind


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A sentence that suggests what is nearest, with a space before it; nothing where nothing is near."""
    by_small = {each.lower(): each for each in known}
    near = get_close_matches(given.lower(), list(by_small), n=1, cutoff=0.55)
    return f" Did you mean {by_small[near[0]]!r}?" if near else ""


def shown(given: object) -> str:
    """A value as a sentence has it: cut where it is long, with its type where that is what is wrong with it."""
    try:
        text = repr(given)
    except Exception:  # an object of the script's that cannot even be shown
        text = "an object"
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 1]}…"
    plain = given is None or isinstance(given, bool | int | float | type)
    return text if plain else f"{text} ({type(given).__name__})"


def or_list(parts: Iterable[str], *, optional: bool = False, last: str = "or") -> str:
    """``True, False or 'late'``."""
    several = [*parts, *(["None"] if optional else [])]
    return several[0] if len(several) == 1 else f"{', '.join(several[:-1])} {last} {several[-1]}"


def _takes(
    words: str, read: Callable[[Any], Any], optional: bool, choices: tuple[str, ...] = (), *, listed: bool = False
) -> Mapping[str, Takes]:
    if not optional:
        return {"takes": Takes(words, read, choices)}
    said = words if listed else f"{words}, or None"
    return {"takes": Takes(said, lambda given: None if given is None else read(given), choices)}


def _number(given: Any) -> Any:
    if isinstance(given, bool) or not isinstance(given, int | float) or given != given:
        raise TypeError
    return given


def _scalar(given: Any) -> Any:
    """A number of numpy or torch as Python's own; anything else as it is."""
    if getattr(given, "ndim", None) == 0 and callable(getattr(given, "item", None)):
        return given.item()
    return given


def _at_least(least: float) -> str:
    return "0 or more" if least == 0 else f"at least {least:g}"
