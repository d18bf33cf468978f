"""Finds the tensor in what a module put out.

In: whatever a module returned. Out: the tensor to look at, or None. Promised: nothing is computed and nothing is kept;
of several tensors the first is taken, as that of a recurrent layer or of an attention layer is its output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from torch import Tensor

from mlflow_stability.probes.aside import is_measurable

MOST_LOOKED_AT = 8
"""Further back in a tuple nothing is looked for."""


def output_tensor(output: Any) -> Tensor | None:
    """The first tensor of numbers in it, but not deeper than one level."""
    if isinstance(output, Tensor):
        return output if is_measurable(output) else None
    parts: Iterable[Any] = ()
    if isinstance(output, Mapping):
        parts = output.values()
    elif isinstance(output, (tuple, list)):
        parts = output
    return next((each for each in islice(parts, MOST_LOOKED_AT) if is_measurable(each)), None)
