"""Puts together what was measured of the codes of one module at one step.

In: points of codes, each quantity in its turn; the share of unique patterns comes after what it is judged by. Out: what
they say together. Guarantees: nothing of an earlier step is taken for one of this step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlflow_stability.detectors.detector import Point

QUANTITIES = ("sdr_rows", "sdr_width", "sdr_active_bits", "sdr_input_ratio", "sdr_unique_ratio")
"""What a share of unique patterns is judged by; that share itself."""


@dataclass(frozen=True, slots=True)
class CodeCounts:
    """The sparse codes of one batch, counted."""

    active_bits: float
    """Mean number of bits of a code that are on."""
    width: float
    """Number of bits of a code; 0 where that is not known."""
    codes: float | None
    """Number of codes that differ; None where the rows of the batch are not known."""
    inputs: float
    """Number of inputs that differ."""

    @property
    def active_share(self) -> float:
        """Share of the bits that are on; 0 where the width is not known."""
        return self.active_bits / self.width if self.width else 0.0

    @property
    def active_in_words(self) -> str:
        """``Active bits: 156.2/512 (30.5%).``"""
        share = f"{self.active_bits:.1f}/{self.width:.0f} ({self.active_share:.1%})"
        return f"Active bits: {share}." if self.width else ""

    def __str__(self) -> str:
        """``: 20 codes for 64 different inputs. Active bits: 12.0/512 (2.3%).``; a full stop where none is known."""
        if self.codes is None:
            return "."
        codes = "1 code" if round(self.codes) == 1 else f"{self.codes:,.0f} codes"
        return f": {codes} for {self.inputs:,.0f} different inputs. {self.active_in_words}"


@dataclass(slots=True)
class CodeReading:
    """The codes of one module at the step that is being seen."""

    step: int = -1
    values: dict[str, float] = field(default_factory=dict)

    def take(self, point: Point) -> None:
        """Take a point in."""
        if point.step != self.step:
            self.step = point.step
            self.values.clear()
        if point.finite:
            self.values[point.quantity] = point.value
        else:
            self.values.pop(point.quantity, None)

    def is_complete(self, point: Point, fewest: int) -> bool:
        """Take a point in; whether it is the last one, of so many different inputs, or somebody logged it alone."""
        self.take(point)
        complete = point.quantity == QUANTITIES[-1] and point.finite
        return complete and ("sdr_rows" not in self.values or self.different_inputs >= fewest)

    @property
    def different_inputs(self) -> float:
        """How many inputs differed; where that is not known, how many there were."""
        return self.values.get("sdr_rows", 0.0) * self.values.get("sdr_input_ratio", 1.0)

    @property
    def unique_share(self) -> float:
        """How many patterns there are for each input that differs; of 1 at most."""
        if "sdr_rows" not in self.values:
            return self.values.get("sdr_unique_ratio", 1.0)
        return min(self._patterns / self.different_inputs, 1.0) if self.different_inputs else 1.0

    @property
    def counts(self) -> CodeCounts:
        """What is known of the codes."""
        values = self.values
        codes = self._patterns if "sdr_rows" in values else None
        return CodeCounts(
            values.get("sdr_active_bits", 0.0), values.get("sdr_width", 0.0), codes, self.different_inputs
        )

    @property
    def _patterns(self) -> float:
        return self.values.get("sdr_rows", 0.0) * self.values.get("sdr_unique_ratio", 0.0)
