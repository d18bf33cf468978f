"""An enum whose members are texts."""

from __future__ import annotations

import enum


class TextEnum(str, enum.Enum):
    """`enum.StrEnum`, which Python 3.10 does not have: a member is, and is shown as, its value."""

    def __str__(self) -> str:
        return str(self.value)
