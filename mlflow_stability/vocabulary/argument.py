"""What an argument accepts: its type, range and choices, and the error for anything else.

Guarantees: any value of any type is either read or answered by a `SettingsError` with the argument's name, what it
accepts, and what it got.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
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
_MAX_REPR = 80  # characters of a value in an error message
LOCALHOST = "127.0.0.1"
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[\w.-]+):(?P<port>\d{1,5})", re.ASCII)
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Accepts:
    words: str  # after "must be": ``a whole number, at least 1``
    read: Callable[[Any], Any]  # returns the canonical form; raises ``TypeError`` or ``ValueError`` for other values
    choices: tuple[str, ...] = ()  # the texts among its choices; the most similar one is suggested

    def check(self, name: str, given: object) -> Any:
        """Return the value of the argument `name` in its canonical form, or raise `SettingsError`."""
        try:
            return self.read(_scalar(given))
        except (TypeError, ValueError, LookupError, OverflowError, AttributeError):
            hint = did_you_mean(given, self.choices) if isinstance(given, str) else ""
            raise SettingsError(f"{name} must be {self.words}; got {short_repr(given)}.{hint}") from None


def whole_number(minimum: int, what: str = "", *, optional: bool = False) -> Mapping[str, Accepts]:
    """An integer; a float without a fraction, such as 1e9, is one too."""

    def read(given: Any) -> int:
        value = _number(given)
        if value != int(value) or value < minimum:
            raise ValueError
        return int(value)

    return _accepts(f"a whole number{what and f' {what}'}, {_minimum_words(minimum)}", read, optional)


def number(
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    what: str = "",
    optional: bool = False,
) -> Mapping[str, Accepts]:
    """A number within limits; infinity is accepted where no limit excludes it, NaN never is."""
    limits: list[tuple[str, Callable[[float], bool]]] = []
    if at_least is not None:
        limits.append((_minimum_words(at_least), lambda value: value >= at_least))
    if above is not None:
        limits.append((f"more than {above:g}", lambda value: value > above))
    if at_most is not None:
        limits.append((f"at most {at_most:g}", lambda value: value <= at_most))
    if below is not None:
        limits.append((f"less than {below:g}", lambda value: value < below))

    def read(given: Any) -> float:
        value: float = _number(given)
        if not all(holds(value) for _, holds in limits):
            raise ValueError
        return value

    bounds = " and ".join(words for words, _ in limits)
    return _accepts(f"a number{what and f' {what}'}{bounds and f', {bounds}'}", read, optional)


def one_of(*choices: bool | str, optional: bool = False) -> Mapping[str, Accepts]:
    """One of a few values, of the same type: 1 is not True."""

    def read(given: Any) -> bool | str:
        for choice in choices:
            if type(choice) is type(given) and choice == given:
                return choice
        raise ValueError

    texts = tuple(choice for choice in choices if isinstance(choice, str))
    words = or_list([*map(repr, choices), *(["None"] if optional else [])])
    return {"takes": Accepts(words, _or_none(read) if optional else read, texts)}


def boolean() -> Mapping[str, Accepts]:
    return one_of(True, False)


def member_of(kind: type[Enum]) -> Mapping[str, Accepts]:
    """A member of an enumeration, or its name."""
    members = tuple(kind.__members__)

    def read(given: Any) -> Enum:
        if isinstance(given, kind):
            return given
        return kind.__members__[given.upper()]

    return {"takes": Accepts(or_list([f"{kind.__name__}.{name}" for name in members]), read, members)}


def port_or_address(example: str) -> Mapping[str, Accepts]:
    """The number of a port, or an address with one; None for no port."""

    def read(given: Any) -> int | str:
        port = listening_address(given)[1]
        return given if isinstance(given, str) else port

    return _accepts(f"a port from 1 to {_MAX_PORT}, or an address such as {example}", read, optional=True)


def listening_address(given: int | float | str) -> tuple[str, int]:
    """Return the host and the port to listen on; a port alone is one of this machine only."""
    if isinstance(given, str):
        match = _ADDRESS.fullmatch(given)
        if match is None:
            raise ValueError(given)
        host, port = match["host"].strip("[]"), int(match["port"])
    else:
        host, port = LOCALHOST, int(_number(given))
        if port != given:
            raise ValueError(given)
    if not 1 <= port <= _MAX_PORT:
        raise ValueError(given)
    return host, port


def names(what: str, example: str) -> Mapping[str, Accepts]:
    """A text or several; always a tuple afterwards."""

    def read(given: Any) -> tuple[str, ...]:
        texts = (given,) if isinstance(given, str) else tuple(given)
        if isinstance(given, bytes | Mapping) or not all(isinstance(text, str) for text in texts):
            raise TypeError
        return texts

    return _accepts(f"{what}, or several of them, such as {example}", read)


def text(what: str, example: str, *, optional: bool = False) -> Mapping[str, Accepts]:
    """One text that is not empty."""

    def read(given: Any) -> str:
        if not isinstance(given, str) or not given:
            raise TypeError
        return given

    return _accepts(f"{what}, such as {example}", read, optional)


def folder(example: str) -> Mapping[str, Accepts]:
    """A path, as a text or a `Path`, or None; not the empty text."""

    def read(given: Any) -> Path:
        if given == "" or not isinstance(given, str | os.PathLike):
            raise TypeError
        return Path(given)

    return _accepts(f"the path of a folder, such as {example}", read, optional=True)


def texts_by_name(example: str) -> Mapping[str, Accepts]:
    """Texts by name; other values are converted to text."""

    def read(given: Any) -> dict[str, str]:
        return {} if given is None else {str(key): str(value) for key, value in given.items()}

    return _accepts(f"a mapping of names to texts, such as {example}, or None", read)


def stateful(example: str) -> Mapping[str, Accepts]:
    """Objects with `state_dict()` and `load_state_dict()`, by name."""

    def read(given: Any) -> dict[str, Any]:
        objects_by_name = {} if given is None else {str(name): value for name, value in given.items()}
        for value in objects_by_name.values():
            if not (callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))):
                raise TypeError
        return objects_by_name

    words = f"a mapping of names to objects with state_dict() and load_state_dict(), such as {example}, or None"
    return _accepts(words, read)


def objects(words: str) -> Mapping[str, Accepts]:
    """Texts and objects whose types are defined in packages above, one or several, or None."""

    def read(given: Any) -> tuple[Any, ...]:
        if isinstance(given, bytes | bool | int | float | Mapping):
            raise TypeError
        return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)

    return _accepts(words, read, optional=True)


def instance_of(kind: type, *others: bool) -> Mapping[str, Accepts]:
    """An object of a class, or one of a few truth values."""

    def read(given: Any) -> Any:
        if not isinstance(given, kind) and not any(given is other for other in others):
            raise TypeError
        return given

    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    words = f"{article} {kind.__name__}" if others else f"{article} {kind.__name__} object"
    return _accepts(or_list([*map(repr, others), words]), read)


def unchecked(words: str = "") -> Mapping[str, Accepts]:
    """Anything: the value is checked in the package above that defines its type."""
    return _accepts(words, lambda given: given)


def check_fields(record: Any) -> None:
    """Check every field of a frozen dataclass against its metadata, and replace it by its canonical form."""
    for field in fields(record):
        accepts: Accepts = field.metadata["takes"]
        given = getattr(record, field.name)
        value = accepts.check(field.name, given)
        if value is not given:
            object.__setattr__(record, field.name, value)


def check_names(call: str, given: Mapping[str, object], accepted: Iterable[str]) -> None:
    """Refuse an argument that a call does not have, with the most similar one, or where it is now."""
    names = list(accepted)
    for name, value in given.items():
        if name not in names:
            from mlflow_stability.vocabulary.settings import argument_place  # which imports this module

            place = argument_place(call, name, value, names)
            hint = f" {place}" if place else did_you_mean(name, names) or f" It has {or_list(names, last='and')}."
            raise SettingsError(f"{call} has no argument {name!r}.{hint}")


def _read_uri(given: Any) -> str | None:
    if given is None:
        return None
    if not isinstance(given, str | os.PathLike) or not isinstance(uri := os.fspath(given), str):
        raise TypeError
    return uri


EVERYWHERE = {
    "tracking_uri": Accepts("the address of an MLflow store, such as 'sqlite:///mlflow.db', or None", _read_uri)
}
"""Arguments with the same meaning in all public functions."""


_GIVEN: ContextVar[frozenset[str]] = ContextVar("_GIVEN", default=frozenset())


def given_arguments() -> frozenset[str]:
    """Return the names of the keyword arguments that the running public function was called with."""
    return _GIVEN.get()


def check_arguments(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Have a public function refuse unknown arguments, and check those of `EVERYWHERE`."""
    names = list(inspect.signature(function).parameters)
    call = f"{function.__qualname__.removesuffix('.__init__')}()"
    checked = [(position, name) for position, name in enumerate(names) if name in EVERYWHERE]
    untyped: Callable[..., _R] = function

    @functools.wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        check_names(call, kwargs, (name for name in names if name != "self"))
        positional, by_name = list(args), dict(kwargs)
        for position, name in checked:
            if name in by_name:
                by_name[name] = EVERYWHERE[name].check(name, by_name[name])
            elif position < len(positional):
                positional[position] = EVERYWHERE[name].check(name, positional[position])
        outer = _GIVEN.set(frozenset(kwargs))
        try:
            return untyped(*positional, **by_name)
        finally:
            _GIVEN.reset(outer)

    return wrapper


def check_init_arguments(kind: type[_R]) -> type[_R]:
    """Apply `check_arguments` to the constructor of a class."""
    setattr(kind, "__init__", check_arguments(kind.__init__))  # noqa: B010 - a plain assignment has no type
    return kind


def did_you_mean(given: str, names: Iterable[str]) -> str:
    """Return a sentence that suggests the most similar name, with a leading space; empty where none is similar."""
    by_lower_case = {name.lower(): name for name in names}
    matches = get_close_matches(given.lower(), list(by_lower_case), n=1, cutoff=0.55)
    return f" Did you mean {by_lower_case[matches[0]]!r}?" if matches else ""


def short_repr(given: object) -> str:
    """Return the repr of a value for an error message, cut to one line, with its type where that is not obvious."""
    try:
        text = repr(given)
    except Exception:  # the script's own class, whose repr fails
        text = "an object"
    if len(text) > _MAX_REPR:
        text = f"{text[: _MAX_REPR - 1]}…"
    is_plain = given is None or isinstance(given, bool | int | float | type)
    return text if is_plain else f"{text} ({type(given).__name__})"


def or_list(parts: Iterable[str], *, last: str = "or") -> str:
    """``True, False or 'late'``."""
    *first, final = parts
    return f"{', '.join(first)} {last} {final}" if first else final


def _accepts(words: str, read: Callable[[Any], Any], optional: bool = False) -> Mapping[str, Accepts]:
    return {"takes": Accepts(f"{words}, or None", _or_none(read)) if optional else Accepts(words, read)}


def _or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda given: None if given is None else read(given)


def _number(given: Any) -> Any:
    if isinstance(given, bool) or not isinstance(given, int | float) or given != given:
        raise TypeError
    return given


def _scalar(given: Any) -> Any:
    """Convert a number of numpy or torch to Python's own; return anything else as it is."""
    if getattr(given, "ndim", None) == 0 and callable(getattr(given, "item", None)):
        return given.item()
    return given


def _minimum_words(minimum: float) -> str:
    return "0 or more" if minimum == 0 else f"at least {minimum:g}"
