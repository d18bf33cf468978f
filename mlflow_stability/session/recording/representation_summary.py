"""Sums up the representations of a training at its end: averages, how it ended, warnings, a verdict.

In: readings as they are recorded, and events as they are found. Out: one event for each module whose representations
were measured. Guarantees: a reading without representations costs one comparison; only sums are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mlflow_stability.kinds.reported.setup import RepresentationSummary
from mlflow_stability.vocabulary.measured import Signal, StepReading
from mlflow_stability.vocabulary.result import Event, Severity

OF_CODES, OF_ROWS = "sdr_active_bits", "effective_rank"
"""What is there at every measurement of codes, or of other representations."""
MEASURED = frozenset({"effective_rank", "stable_rank", "mean_cosine", "sdr_input_ratio", "sdr_unique_ratio"}) | {
    f"sdr_{each}"
    for each in ("width", "active_bits", "bit_usage", "duty_entropy", "overlap", "overlap_expected", "temperature")
}
"""What is summed up."""
VERDICTS: Mapping[str, str] = {
    "sdr_collapse": "codes collapsed",
    "representation_collapse": "representation collapsed",
    "sdr_low_diversity": "codes became more alike",
    "sdr_bit_usage": "most bits were not used",
    "sdr_temperature": "temperature diverged",
}
"""What warnings of each kind come to, the worst first."""


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

    def count(self, event: Event) -> None:
        """Runs after each event."""
        if event.kind in VERDICTS and event.place in self._modules:
            module = self._modules[event.place]
            module.warnings[event.kind] += 1
            module.warned_at.setdefault(event.kind, event.step)

    def events(self, step: int) -> list[Event]:
        """What it came to, one event for each module."""
        return [_event(place, each, step) for place, each in self._modules.items() if each.counts]


def _event(place: str, module: _Module, step: int) -> Event:
    codes = module.counts[OF_CODES] > 0
    measured = module.counts[OF_CODES] or module.counts[OF_ROWS]
    times = "1 measurement" if measured == 1 else f"{measured} measurements"
    said = f"{'Codes' if codes else 'Representations'} of {place}, averages of {times}: "
    said += ", ".join(_of_codes(module) if codes else _of_rows(module))
    total = sum(module.warnings.values())
    evidence = {quantity: module.mean(quantity) for quantity in sorted(module.counts)}
    evidence |= {"measurements": float(measured), "warnings": float(total)}
    if "sdr_unique_ratio" in module.last:
        evidence["last_unique_ratio"] = module.last["sdr_unique_ratio"]
    return Event(
        step,
        RepresentationSummary.kind,
        Severity.INFO,
        f"{said}. {_verdict(module, total)}",
        place=place,
        evidence=evidence,
        remedies=RepresentationSummary.remedies if total else (),
    )


def _of_codes(module: _Module) -> Sequence[str]:
    mean, width = module.mean, module.mean("sdr_width")
    parts = [
        f"{mean('sdr_unique_ratio'):.1%} unique patterns ({module.last.get('sdr_unique_ratio', 0.0):.1%} at the end)",
        f"active bits {mean(OF_CODES):.1f}/{width:.0f} ({mean(OF_CODES) / max(width, 1.0):.1%})",
        f"{mean('sdr_bit_usage'):.1%} of the bits used",
        f"entropy of the duty cycles {mean('sdr_duty_entropy'):.2f}",
        f"overlap {mean('sdr_overlap'):.2f} ({mean('sdr_overlap_expected'):.2f} by chance)",
    ]
    if module.counts["sdr_temperature"]:
        parts.append(f"temperature {mean('sdr_temperature'):.3g} ({module.last['sdr_temperature']:.3g} at the end)")
    return parts


def _of_rows(module: _Module) -> Sequence[str]:
    return [
        f"effective rank {module.mean(OF_ROWS):.1f} ({module.last.get(OF_ROWS, 0.0):.1f} at the end)",
        f"stable rank {module.mean('stable_rank'):.1f}",
        f"mean cosine similarity {module.mean('mean_cosine'):.2f}",
    ]


def _verdict(module: _Module, total: int) -> str:
    worst = next((kind for kind in VERDICTS if module.warnings[kind]), None)
    if worst is None:
        return "Verdict: healthy, no warnings."
    often = "1 warning" if total == 1 else f"{total} warnings"
    return f"Verdict: {VERDICTS[worst]}, first seen at step {module.warned_at[worst]}; {often}."
