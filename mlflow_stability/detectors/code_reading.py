"""Puts together what was measured of the codes of one module at one step.

In: points of codes, each quantity in its turn; the share of unique patterns comes after what it is judged by. Out: what
they say together. Guarantees: nothing of an earlier step is taken for one of this step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlflow_stability.detectors.detector import Point

QUANTITIES = ("sdr_rows", "sdr_width", "sdr_active_bits", "sdr_input_ratio", "sdr_unique_ratio")
"""What a share of unique patterns is judged by; that share itself."""


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

    def can_be_judged(self, fewest: int) -> bool:
        """Whether there were so many different inputs; a share that somebody logged alone is judged as it is."""
        return "sdr_rows" not in self.values or self.different_inputs >= fewest

    @property
    def different_inputs(self) -> float:
        """How many inputs differed; where that is not known, how many there were."""
        return self.values.get("sdr_rows", 0.0) * self.values.get("sdr_input_ratio", 1.0)

    @property
    def patterns(self) -> float:
        """How many patterns differed."""
        return self.values.get("sdr_rows", 0.0) * self.values.get("sdr_unique_ratio", 0.0)

    @property
    def unique_share(self) -> float:
        """How many patterns there are for each input that differs; of 1 at most."""
        if "sdr_rows" not in self.values:
            return self.values.get("sdr_unique_ratio", 1.0)
        return min(self.patterns / self.different_inputs, 1.0) if self.different_inputs else 1.0

    @property
    def counts(self) -> str:
        """``: 20 codes for 64 different inputs. Active bits: 12.0/512 (2.3%).``; nothing of it where none is known."""
        if "sdr_rows" not in self.values:
            return "."
        codes = "1 code" if round(self.patterns) == 1 else f"{self.patterns:,.0f} codes"
        return f": {codes} for {self.different_inputs:,.0f} different inputs. {self.active_bits}"

    @property
    def active_bits(self) -> str:
        """``Active bits: 156.2/512 (30.5%).``"""
        active, width = self.values.get("sdr_active_bits", 0.0), self.values.get("sdr_width", 0.0)
        return f"Active bits: {active:.1f}/{width:.0f} ({active / width:.1%})." if width else ""
