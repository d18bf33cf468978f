"""Sums up the representations of a training at its end: averages, how it ended, warnings, a verdict.

In: readings as they are recorded, and events as they are found. Out: one event for each module whose representations
were measured. Guarantees: a reading without representations costs one comparison; only sums are kept.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from mlflow_stability.kinds.reported.representation_summary import (
    OF_CODES,
    OF_ROWS,
    VERDICTS,
    RepresentationSummary,
    RepresentationSummaryFacts,
)
from mlflow_stability.vocabulary.measured import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding, Severity

MEASURED = frozenset({"effective_rank", "stable_rank", "mean_cosine", "sdr_input_ratio", "sdr_unique_ratio"}) | {
    f"sdr_{each}"
    for each in ("width", "active_bits", "bit_usage", "duty_entropy", "overlap", "overlap_expected", "temperature")
}
"""What is summed up."""


@dataclass(slots=True)
class _Module:
    """What was measured of one module so far."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    last: dict[str, float] = field(default_factory=dict)
    warnings: Counter[str] = field(default_factory=Counter)
    warned_at: dict[str, int] = field(default_factory=dict)
    """The first warning of each kind."""

    def add(self, quantity: str, value: float) -> None:
        if value == value:
            self.sums[quantity] = self.sums.get(quantity, 0.0) + value
            self.counts[quantity] += 1
            self.last[quantity] = value

    def mean(self, quantity: str) -> float:
        return self.sums[quantity] / self.counts[quantity] if self.counts[quantity] else 0.0


class RepresentationTotals:
    """The representations of one recording."""

    def __init__(self) -> None:
        self._modules: dict[str, _Module] = {}
        self._layout: tuple[Signal, ...] | None = None
        self._columns: tuple[int, ...] = ()
        """Where representations stand in readings of that layout."""

    def take(self, reading: StepReading) -> None:
        """Runs after each reading."""
        if reading.signals is not self._layout:
            self._layout = reading.signals
            self._columns = tuple(at for at, each in enumerate(reading.signals) if each.quantity in MEASURED)
        inputs = 1.0
        for at in self._columns:
            signal, value = reading.signals[at], reading.values[at]
            if signal.quantity == "sdr_input_ratio":
                inputs = value if value > 0 else 1.0
                continue
            if signal.quantity == "sdr_unique_ratio":  # equal inputs may have equal codes
                value, inputs = min(value / inputs, 1.0), 1.0
            self._modules.setdefault(signal.place, _Module()).add(signal.quantity, value)

    def count(self, event: Finding) -> None:
        """Runs after each event."""
        if event.kind in VERDICTS and event.place in self._modules:
            module = self._modules[event.place]
            module.warnings[event.kind] += 1
            module.warned_at.setdefault(event.kind, event.step)

    def events(self, step: int) -> list[Finding]:
        """What it came to, one event for each module."""
        return [_event(place, each, step) for place, each in self._modules.items() if each.counts]


def _event(place: str, module: _Module, step: int) -> Finding:
    total = sum(module.warnings.values())
    worst = next((kind for kind in VERDICTS if module.warnings[kind]), "")
    facts = RepresentationSummaryFacts(
        place,
        module.counts[OF_CODES] or module.counts[OF_ROWS],
        tuple((quantity, module.mean(quantity)) for quantity in sorted(module.counts)),
        tuple(sorted(module.last.items())),
        total,
        worst,
        module.warned_at.get(worst),
    )
    remedies = RepresentationSummary.remedies if total else ()
    return Finding.at(facts, step, Severity.INFO, place=place, remedies=remedies)
