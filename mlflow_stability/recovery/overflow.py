"""Tells an overflow from an operation that is not defined for what it was given.

In: a birth. Out: whether the numbers that went in were too large for their type. Promised: the logarithm of zero and a
division by zero are no overflow, though they give an infinity: no wider type and no smaller number mends them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlflow_stability.recovery.batch_facts import TensorFacts
from mlflow_stability.recovery.loss_graph import BREAKING
from mlflow_stability.recovery.nan_birth import Birth

LARGEST = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38, "float64": 1.7977e308}
"""The largest number of each type."""
ENDLESS = frozenset({"cosh", "exp", "exp2", "expm1", "linalg_vector_norm", "norm", "prod", "sinh", "std", "var"})
"""Finite for every number, and so infinite only where the result is too large."""
DIVIDING = frozenset({"addcdiv", "div", "divide", "true_divide"})
POLES = BREAKING - ENDLESS - DIVIDING - {"pow"}
"""Infinite, or not defined, at some number: the logarithm at zero."""
HIGHEST_POWER = 4
"""Numbers are raised to a power up to this; numbers whose power of that much is finite did not overflow."""


def overflowed(birth: Birth) -> bool:
    """Whether large finite numbers went in, and what should have come out is larger than the type can hold."""
    made, name = birth.output, birth.operation
    limit = None if made is None else LARGEST.get(made.dtype)
    if made is None or limit is None or birth.source not in ("forward", "backward"):
        return False
    largest = _largest(birth.inputs)
    if made.nan:  # infinity minus infinity within one operation
        return name not in BREAKING and not any(each.inf for each in birth.inputs) and largest > math.sqrt(limit)
    if name in DIVIDING:
        by_zero = len(birth.inputs) > 1 and _meets_zero(birth.inputs[1])
        return not by_zero and _largest(birth.inputs[:1]) > math.sqrt(limit)
    if name == "pow":
        return largest > math.pow(limit, 1 / HIGHEST_POWER)
    return bool(made.inf) and name not in POLES


def _largest(several: Sequence[TensorFacts]) -> float:
    ends = [end for each in several for end in (each.least, each.greatest) if end is not None]
    return max(map(abs, ends), default=0.0)


def _meets_zero(facts: TensorFacts) -> bool:
    return facts.least is not None and facts.greatest is not None and facts.least <= 0.0 <= facts.greatest
