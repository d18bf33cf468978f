"""Summarise the representations of a training at its end: averages, last values, warnings, a verdict."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from mlflow_stability.kinds.reported.endings import (
    OF_CODES,
    OF_ROWS,
    VERDICTS,
    RepresentationSummary,
    RepresentationSummaryFacts,
)
from mlflow_stability.vocabulary.measured.signal import Signal, StepReading
from mlflow_stability.vocabulary.result import Finding, Severity

MEASURED = frozenset({"effective_rank", "stable_rank", "mean_cosine", "sdr_input_ratio", "sdr_unique_ratio"}) | {
    f"sdr_{name}"
    for name in ("width", "active_bits", "bit_usage", "duty_entropy", "overlap", "overlap_expected", "temperature")
}


@dataclass(slots=True)
class _Module:
    sums: dict[str, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    last: dict[str, float] = field(default_factory=dict)
    warnings: Counter[str] = field(default_factory=Counter)
    warned_at: dict[str, int] = field(default_factory=dict)  # first warning of each kind

    def add(self, quantity: str, value: float) -> None:
        if value == value:
            self.sums[quantity] = self.sums.get(quantity, 0.0) + value
            self.counts[quantity] += 1
            self.last[quantity] = value

    def mean(self, quantity: str) -> float:
        return self.sums[quantity] / self.counts[quantity] if self.counts[quantity] else 0.0


class RepresentationTotals:
    """Sums of the representations of a training.

    Guarantees: a reading without representations costs one comparison; only sums are kept.
    """

    def __init__(self) -> None:
        self._modules: dict[str, _Module] = {}
        self._layout: tuple[Signal, ...] | None = None
        self._columns: tuple[int, ...] = ()  # indices of representations in readings of that layout

    def take(self, reading: StepReading) -> None:
        if reading.signals is not self._layout:
            self._layout = reading.signals
            self._columns = tuple(at for at, signal in enumerate(reading.signals) if signal.quantity in MEASURED)
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
        if event.kind in VERDICTS and event.place in self._modules:
            module = self._modules[event.place]
            module.warnings[event.kind] += 1
            module.warned_at.setdefault(event.kind, event.step)

    def events(self, step: int) -> list[Finding]:
        """Return one finding for each module."""
        return [_event(place, module, step) for place, module in self._modules.items() if module.counts]


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
