"""A condition on a signal, as people write it: ``grad_norm>100``, ``loss >= 50``, ``grad_norm@layer.0>10``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from mlflow_stability.vocabulary.measured.signal import Signal

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_FORM = re.compile(r"\s*([A-Za-z_]\w*(?:@[\w.\-]+)?)\s*(>=|<=|>|<)\s*(\S+)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    """A signal compared with a number."""

    text: str
    """As it was written, without blanks at its ends."""
    signal: Signal
    """One without a place means the whole model, and each training beside the first."""
    comparison: str
    limit: float
    """NaN where what was written is not a number."""

    def holds(self, value: float) -> bool:
        """Whether this value meets it; NaN never does."""
        return _COMPARISONS[self.comparison](value, self.limit)


def condition_in(text: str) -> Condition | None:
    """Read a condition; None where the text does not have its form."""
    form = _FORM.fullmatch(text)
    if form is None:
        return None
    signal, comparison, number = form.groups()
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    return Condition(text.strip(), Signal.parse(signal), comparison, limit)
