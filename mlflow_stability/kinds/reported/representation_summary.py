"""The representations of a module, summarised at the end of the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlflow_stability.detectors.finding_type import FindingType
from mlflow_stability.vocabulary.facts import Facts
from mlflow_stability.vocabulary.result import Action, Remedy, Severity
from mlflow_stability.vocabulary.text.phrases import counted

OF_CODES, OF_ROWS = "sdr_active_bits", "effective_rank"
"""What is there at every measurement of codes, or of other representations."""
VERDICTS: Mapping[str, str] = {
    "sdr_collapse": "codes collapsed",
    "representation_collapse": "representation collapsed",
    "sdr_low_diversity": "codes became more alike",
    "sdr_bit_usage": "most bits were not used",
    "sdr_temperature": "temperature diverged",
}
"""What warnings of each kind come to, the worst first."""


@dataclass(frozen=True, slots=True)
class RepresentationSummaryFacts(Facts):
    """What was measured of the representations of one module in a whole training."""

    kind = "representation_summary"

    module: str
    """The module."""
    measurements: int
    """Number of measurements."""
    means: tuple[tuple[str, float], ...]
    """Each quantity with its mean."""
    last: tuple[tuple[str, float], ...]
    """Each quantity with its last value."""
    warnings: int = 0
    """Number of warnings about the module."""
    worst: str = ""
    """The worst kind of these warnings; empty: there was none."""
    worst_since: int | None = None
    """The step of the first warning of that kind."""

    @property
    def last_unique_ratio(self) -> float | None:
        """Share of unique codes at the end; None for representations that are no codes."""
        return dict(self.last).get("sdr_unique_ratio")

    def numbers(self) -> dict[str, float]:
        numbers = {**dict(self.means), "measurements": float(self.measurements), "warnings": float(self.warnings)}
        unique = self.last_unique_ratio
        return numbers if unique is None else {**numbers, "last_unique_ratio": unique}

    def sentence(self, _step: int, unit: str = "step", /) -> str:
        means = dict(self.means)
        what = "Codes" if OF_CODES in means else "Representations"
        parts = ", ".join(self._of_codes(means) if OF_CODES in means else self._of_rows(means))
        averages = f"{what} of {self.module}, averages of {counted(self.measurements, 'measurement')}: {parts}."
        if not self.worst:
            return f"{averages} Verdict: healthy, no warnings."
        since = f"first seen at {unit} {self.worst_since}; {counted(self.warnings, 'warning')}"
        return f"{averages} Verdict: {VERDICTS[self.worst]}, {since}."

    def _of_codes(self, means: Mapping[str, float]) -> Sequence[str]:
        last, active = dict(self.last), means[OF_CODES]
        unique_at_end = self.last_unique_ratio or 0.0
        width = means.get("sdr_width", 0.0)
        parts = [
            f"{means.get('sdr_unique_ratio', 0.0):.1%} unique patterns ({unique_at_end:.1%} at the end)",
            f"active bits {active:.1f}/{width:.0f} ({active / max(width, 1.0):.1%})",
            f"{means.get('sdr_bit_usage', 0.0):.1%} of the bits used",
            f"entropy of the duty cycles {means.get('sdr_duty_entropy', 0.0):.2f}",
            f"overlap {means.get('sdr_overlap', 0.0):.2f} ({means.get('sdr_overlap_expected', 0.0):.2f} by chance)",
        ]
        if "sdr_temperature" in means:
            parts.append(
                f"temperature {means['sdr_temperature']:.3g} ({last.get('sdr_temperature', 0.0):.3g} at the end)"
            )
        return parts

    def _of_rows(self, means: Mapping[str, float]) -> Sequence[str]:
        last = dict(self.last).get(OF_ROWS, 0.0)
        return [
            f"effective rank {means.get(OF_ROWS, 0.0):.1f} ({last:.1f} at the end)",
            f"stable rank {means.get('stable_rank', 0.0):.1f}",
            f"mean cosine similarity {means.get('mean_cosine', 0.0):.2f}",
        ]


@dataclass(frozen=True, slots=True)
class RepresentationSummary(FindingType):
    """The representations of a module, summarised at the end of the training.

    What it sees: once for each measured module: means over all measurements, the last values, the number of warnings,
    and a verdict.

    Why it matters: a collapse that came and went, or that was there from the start, is easily missed in single
    findings.

    What to try: read the findings of the same module, which say when it started.

    When it is wrong: a training that ended before there were three measurements has too little to summarise.

    Reference: Ahmad and Hawkins, Properties of sparse distributed representations (arXiv:1503.07469)
    """

    kind = "representation_summary"
    noun = "a summary of representations"
    plural = "summaries of representations"
    order = 1150
    severities = (Severity.INFO,)
    remedies = (Remedy(Action.READ_FINDINGS_OF_MODULE),)
