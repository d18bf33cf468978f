"""Ages and sizes as people type them: `30d`, `12h`, `50GB`."""

from __future__ import annotations

import re
from typing import Any

import click

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_BYTES = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


class Duration(click.ParamType[float]):
    """A span of time, in seconds."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds of `30d`, `12h`, `90m`, `2w`."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", str(value).strip().lower())
        if found is None:
            self.fail(f"{value!r} is not an age such as 30d, 12h or 90m.", param, ctx)
        return float(found[1]) * _SECONDS[found[2]]


class Size(click.ParamType[int]):
    """A size, in bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes of `50GB`, `500MB`, `1.5TB`."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]b)", str(value).strip().lower())
        if found is None:
            self.fail(f"{value!r} is not a size such as 50GB or 500MB.", param, ctx)
        return int(float(found[1]) * _BYTES[found[2]])
