"""Whether the level of a loss measures progress, and if not, why.

A recording keeps this as the signal `loss_without_level`, whose value is `LossLevel.code`.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

LOSS_LEVEL = "loss_without_level"  # the signal that records it
_BY_USER = 10  # added to the code of a level that the user set


class NoLevel(IntEnum):
    """Why the level of a loss does not measure progress. The numbers are part of the record."""

    ADVERSARIAL = 1
    BOOTSTRAPPED = 2
    SELF_DISTILLATION = 3
    POLICY = 4
    PREFERENCE = 5
    SIGNED = 6
    NAMED = 7


class LossLevel(NamedTuple):
    """Whether the level of a loss measures progress."""

    reason: NoLevel | None  # why the level does not measure progress; None: it does
    by_user: bool = False  # whether `autolog(loss=...)` set it; then no observation changes it

    @property
    def code(self) -> float:
        return float((self.reason or 0) + _BY_USER * self.by_user)


def level_from_code(code: float) -> LossLevel | None:
    """Read a value of the signal; None for values of later versions."""
    if not math.isfinite(code):
        return None
    by_user, number = divmod(round(code), _BY_USER)
    reasons = [None, *NoLevel]
    return LossLevel(reasons[number], bool(by_user)) if by_user in (0, 1) and number < len(reasons) else None


SUPERVISED = "supervised"  # value of ``loss=`` for a loss whose level measures progress
LOSS_WORDS = (SUPERVISED, *(reason.name.lower() for reason in NoLevel if reason is not NoLevel.NAMED))
"""Values of `autolog(loss=...)`."""


def level_from_word(word: str) -> LossLevel:
    """Return the level that a user set by one of `LOSS_WORDS`."""
    return LossLevel(None if word == SUPERVISED else NoLevel[word.upper()], by_user=True)


REASONS = {
    NoLevel.ADVERSARIAL: "optimizers take turns, as in adversarial training, where one loss rises as the other falls",
    NoLevel.BOOTSTRAPPED: "a second copy of the model, updated by copying or averaging, computes its target",
    NoLevel.SELF_DISTILLATION: "the model learns from an average of itself, which changes the target",
    NoLevel.POLICY: "it is the objective of a policy, computed on actions that the model chose",
    NoLevel.PREFERENCE: "it compares answers by preference",
    NoLevel.SIGNED: "its sign keeps changing",
    NoLevel.NAMED: "its name, or a reward logged beside it, is that of adversarial training or reinforcement learning",
}
"""Each reason as part of a sentence about a loss."""


def reason_words(level: LossLevel) -> str:
    """Say why the level is not judged, as part of a sentence."""
    if level.reason is None:
        return ""
    return f'loss="{level.reason.name.lower()}" was set' if level.by_user else REASONS[level.reason]
