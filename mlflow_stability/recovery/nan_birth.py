"""What is known of the operation that made the first number that is not finite."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from mlflow_stability.recovery.batch_facts import TensorFacts

Source: TypeAlias = Literal["input", "weight", "buffer", "optimizer", "forward", "backward", "loss", "elsewhere"]
"""Where it comes from: it was in the batch, in a weight, in a buffer; the optimizer wrote it into a weight; an
operation of the forward or the backward pass made it; the script's own loss function; a tensor of the script's."""


@dataclass(frozen=True, slots=True)
class Birth:
    """A number that is not finite, where all before it were."""

    source: Source
    module: str = ""
    """The innermost module that was being run; the one that owns the weight. Empty: the model itself."""
    operation: str = ""
    """``log``; in the backward pass that of the forward pass whose gradient it is."""
    line: str = ""
    """The user's own line: ``model.py:41 in Block.forward``."""
    name: str = ""
    """Of the input, the weight or the buffer."""
    inputs: tuple[TensorFacts, ...] = ()
    """What went into the operation."""
    output: TensorFacts | None = None
    """What came out."""
    meant: bool = False
    """An infinity that was written there on purpose, as masks are."""
    nan_by: str = ""
    """Which later operation made a NaN of it, where it was an infinity at first."""
    number: int = 0
    """The how manieth it was."""

    @property
    def is_nan(self) -> bool:
        """Whether it was a NaN at birth, or has become one."""
        return bool(self.nan_by) or (self.output is not None and self.output.nan > 0)

    def turned_nan(self, operation: str) -> Birth:
        """The same, once an operation made a NaN of the infinity."""
        return self if self.nan_by or self.output is None or self.output.nan else replace(self, nan_by=operation)
