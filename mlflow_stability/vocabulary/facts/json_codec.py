"""Frozen dataclasses as JSON and back, from the types of their fields.

Enums are their values, tuples are lists, and numbers that JSON does not have are the strings "nan",
"inf" and "-inf". Names in the JSON that are no field are passed over.
"""

from __future__ import annotations

import enum
import math
import types
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints


def encode(value: Any) -> Any:
    """The value as JSON has it."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if is_dataclass(value):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [encode(part) for part in value]
    return value


def decode(wanted: Any, value: Any) -> Any:
    """The value of JSON as the wanted type; ValueError, TypeError or KeyError where it is none of that type."""
    if get_origin(wanted) in (Union, types.UnionType):
        if value is None:
            return None
        return decode(next(each for each in get_args(wanted) if each is not types.NoneType), value)
    if get_origin(wanted) is tuple:
        parts = get_args(wanted)
        if len(parts) == 2 and parts[1] is Ellipsis:
            return tuple(decode(parts[0], part) for part in value)
        return tuple(decode(part, each) for part, each in zip(parts, value, strict=True))
    if isinstance(wanted, type) and is_dataclass(wanted):
        hints = _field_types(wanted)
        return wanted(**{name: decode(hints[name], part) for name, part in value.items() if name in hints})
    if wanted is int and isinstance(value, bool | str):
        raise TypeError(f"{value!r} is not an integer")
    if wanted in (bool, str) and not isinstance(value, wanted):
        raise TypeError(f"{value!r} is not of type {wanted.__name__}")
    return wanted(value)


@cache
def _field_types(cls: Any) -> dict[str, Any]:
    """Types of the fields that a JSON may name."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls) if field.init}
